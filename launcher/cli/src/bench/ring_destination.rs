//! Memory that the files are read into, over and over.

use std::collections::VecDeque;
use std::sync::Arc;

use hostbuf_staging::{
    BorrowedMemory, CopyDevice, DeviceBuffer, DeviceTarget, File, HostDevice, HostMemory, Ring, RingError,
    RingOptions, Transfer,
};

use super::bench_error::BenchError;
use super::bench_sample::BenchSample;
use super::measured_files::FilePart;

/// The largest number of bytes of one transfer.
pub(super) const PART_BYTES: u64 = 16 << 20;
/// The number of transfers that are in flight at a time, each with its own part of the memory.
const IN_FLIGHT: u64 = 4;

/// A destination of reads.
pub(super) trait BenchDestination {
    /// Describes the destination: `the host`, or `GPU 0`.
    fn name(&self) -> String;

    /// Reads the parts of the files, and measures that.
    ///
    /// # Errors
    /// [`BenchError::Transfer`].
    fn read(&self, files: &[File], parts: &[FilePart]) -> Result<BenchSample, BenchError>;
}

/// Memory of a fixed size, and the ring that reads into it. Each transfer overwrites what an
/// earlier one has read.
pub(super) struct RingDestination<D: CopyDevice> {
    ring: Ring<D>,
    windows: Vec<DeviceTarget>,
}

impl RingDestination<HostDevice> {
    /// Allocates memory of the host.
    ///
    /// # Errors
    /// [`BenchError::Ring`].
    pub(super) fn on_host(options: RingOptions) -> Result<RingDestination<HostDevice>, BenchError> {
        let bytes = memory_bytes();
        let memory = HostMemory::try_new(bytes).ok_or(RingError::NoMemory { bytes })?;
        let memory = BorrowedMemory::from(memory);
        Ok(RingDestination::new(Ring::for_host(options)?, Arc::new(memory)))
    }
}

impl<D: CopyDevice> RingDestination<D> {
    /// Makes a destination of memory with [`memory_bytes`] bytes.
    pub(super) fn new(ring: Ring<D>, memory: Arc<dyn DeviceBuffer>) -> RingDestination<D> {
        let all = DeviceTarget::new(memory);
        let window = |number: u64| all.part(number * PART_BYTES..(number + 1) * PART_BYTES);
        let windows = (0..IN_FLIGHT).map(|number| window(number).expect("the memory has all windows"));
        RingDestination { ring, windows: windows.collect() }
    }

    /// Reads the parts, and returns the number of their bytes.
    fn transfer(&self, files: &[File], parts: &[FilePart]) -> Result<u64, BenchError> {
        let mut in_flight: VecDeque<Transfer> = VecDeque::new();
        let mut moved = 0;
        for (part, window) in parts.iter().zip(self.windows.iter().cycle()) {
            // The oldest transfer has the window of the next one.
            if in_flight.len() == self.windows.len()
                && let Some(oldest) = in_flight.pop_front()
            {
                moved += oldest.wait()?;
            }
            let target = window.part(0..part.bytes).expect("a part fits into a window");
            in_flight.push_back(files[part.file].pread(&self.ring, target, part.offset));
        }
        for transfer in in_flight {
            moved += transfer.wait()?;
        }
        Ok(moved)
    }
}

impl<D: CopyDevice> BenchDestination for RingDestination<D> {
    fn name(&self) -> String {
        self.ring.device().name()
    }

    fn read(&self, files: &[File], parts: &[FilePart]) -> Result<BenchSample, BenchError> {
        BenchSample::of(|| self.ring.counters(), || self.transfer(files, parts))
    }
}

/// Returns the number of bytes of the memory of a destination.
pub(super) fn memory_bytes() -> usize {
    (IN_FLIGHT * PART_BYTES) as usize
}
