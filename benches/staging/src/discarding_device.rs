//! A device without memory, to measure the part of a ring that reads files.

#![allow(unsafe_code, reason = "reads the slots of a ring while their copy lasts")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostbuf_staging::{CopyDevice, DeviceBuffer, DeviceCopy, DeviceError};

/// A device that discards the bytes of a file, or compares them with the file.
#[derive(Clone, Debug)]
pub(crate) struct DiscardingDevice {
    file: Arc<File>,
    compares: Arc<AtomicBool>,
}

impl DiscardingDevice {
    pub(crate) fn new(file: File) -> DiscardingDevice {
        DiscardingDevice { file: Arc::new(file), compares: Arc::new(AtomicBool::new(false)) }
    }

    /// Lets the device compare from now on.
    pub(crate) fn compare(&self) {
        self.compares.store(true, Ordering::Relaxed);
    }

    fn error(&self, doing: &str, why: String) -> DeviceError {
        DeviceError::refused(self.name(), doing, why)
    }
}

impl CopyDevice for DiscardingDevice {
    type Event = ();

    fn name(&self) -> String {
        "a device that discards".into()
    }

    fn new_event(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], (): &()) -> Result<(), DeviceError> {
        if !self.compares.load(Ordering::Relaxed) {
            return Ok(());
        }
        for &DeviceCopy { host, bytes, address } in copies {
            // SAFETY: the caller guarantees the memory, to which nothing writes.
            let from = unsafe { std::slice::from_raw_parts(host.cast_const(), bytes) };
            let (offset, mut expected) = (address - FIRST, vec![0; bytes]);
            let read = self.file.read_exact_at(&mut expected, offset);
            read.map_err(|error| self.error("comparing", error.to_string()))?;
            if from != expected {
                return Err(self.error("comparing", format!("the bytes from {offset} on differ")));
            }
        }
        Ok(())
    }

    unsafe fn copy_to_host(&self, _copies: &[DeviceCopy], (): &()) -> Result<(), DeviceError> {
        Err(self.error("copying", "the device has no memory".into()))
    }

    fn is_complete(&self, (): &()) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn wait(&self, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// The address of the first byte.
const FIRST: u64 = 1 << 40;

/// The addresses of a device that discards, one for each byte of the file.
#[derive(Debug)]
pub(crate) struct DiscardedBytes(pub(crate) u64);

// SAFETY: nothing accesses the addresses.
unsafe impl DeviceBuffer for DiscardedBytes {
    fn address(&self) -> u64 {
        FIRST
    }

    fn bytes(&self) -> u64 {
        self.0
    }
}
