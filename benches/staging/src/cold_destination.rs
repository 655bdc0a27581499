//! The end of reads from a cold disk.

use std::error::Error;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hostbuf_staging::{CopyDevice, CudaDevice, DeviceTarget, HostMemory, Ring, RingOptions};

use crate::discarding_device::{DiscardedBytes, DiscardingDevice};
use crate::gpu_source::GpuSource;
use crate::source_memory::SourceMemory;

/// The unit of a comparison.
const BLOCK: usize = 1 << 20;

/// A device to which rings read a file.
pub(crate) trait ColdDestination {
    type Device: CopyDevice;

    /// Makes a ring of the device.
    ///
    /// # Errors
    /// Those of the ring and of its memory.
    fn ring(&self, options: RingOptions) -> Result<Ring<Self::Device>, Box<dyn Error>>;

    /// Returns the memory as one end of a transfer.
    fn target(&self) -> DeviceTarget;

    /// Prepares the comparison of the next read with the file.
    ///
    /// # Errors
    /// The device's.
    fn start_comparing(&mut self) -> Result<(), Box<dyn Error>>;

    /// Compares the bytes of the last read with the file.
    ///
    /// # Errors
    /// The first block that differs, and those of the file and the device.
    fn compare(&self, file: &fs::File) -> Result<(), Box<dyn Error>>;
}

/// A destination that discards the bytes of a file.
pub(crate) struct Discarded {
    device: DiscardingDevice,
    bytes: u64,
}

impl Discarded {
    pub(crate) fn new(file: fs::File, bytes: u64) -> Discarded {
        Discarded { device: DiscardingDevice::new(file), bytes }
    }
}

impl ColdDestination for Discarded {
    type Device = DiscardingDevice;

    fn ring(&self, options: RingOptions) -> Result<Ring<DiscardingDevice>, Box<dyn Error>> {
        Ok(Ring::new(self.device.clone(), options, HostMemory::new(options.bytes()?))?)
    }

    fn target(&self) -> DeviceTarget {
        DeviceTarget::new(Arc::new(DiscardedBytes(self.bytes)))
    }

    fn start_comparing(&mut self) -> Result<(), Box<dyn Error>> {
        self.device.compare();
        Ok(())
    }

    /// Returns without an error: the device has compared each copy.
    fn compare(&self, _file: &fs::File) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

impl ColdDestination for GpuSource {
    type Device = CudaDevice;

    fn ring(&self, options: RingOptions) -> Result<Ring<CudaDevice>, Box<dyn Error>> {
        SourceMemory::ring(self, options)
    }

    fn target(&self) -> DeviceTarget {
        SourceMemory::target(self)
    }

    /// Clears the memory, which has the bytes of an earlier read.
    fn start_comparing(&mut self) -> Result<(), Box<dyn Error>> {
        let bytes = self.bytes();
        let zeros = vec![0; BLOCK];
        for offset in (0..bytes).step_by(BLOCK) {
            self.store(&zeros[..BLOCK.min(bytes - offset)], offset)?;
        }
        Ok(())
    }

    fn compare(&self, file: &fs::File) -> Result<(), Box<dyn Error>> {
        let bytes = self.bytes();
        let (mut moved, mut expected) = (vec![0; BLOCK], vec![0; BLOCK]);
        for offset in (0..bytes).step_by(BLOCK) {
            let length = BLOCK.min(bytes - offset);
            self.load(&mut moved[..length], offset)?;
            file.read_exact_at(&mut expected[..length], offset as u64)?;
            if moved[..length] != expected[..length] {
                return Err(
                    format!("the {length} bytes from {offset} on differ from those of the file").into()
                );
            }
        }
        Ok(())
    }
}
