//! A GPU by the CUDA driver.

#![allow(unsafe_code, reason = "passes the promises of a ring on to the driver")]

use hostbuf_cuda::{CudaContext, CudaError, CudaEvent, CudaStream, DeviceMemory, DeviceSpan};

use super::copy_device::{CopyDevice, DeviceCopy};
use super::device_buffer::DeviceBuffer;
use super::device_error::DeviceError;

/// A GPU, with a stream of its own.
#[derive(Debug)]
pub struct CudaDevice {
    stream: CudaStream,
}

impl CudaDevice {
    /// Makes a stream in a context.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &CudaContext) -> Result<CudaDevice, DeviceError> {
        let stream = CudaStream::new(context);
        stream.map(|stream| CudaDevice { stream }).map_err(|error| {
            let device = format!("GPU {}", context.gpu().ordinal());
            DeviceError::refused(device, "making a stream", error)
        })
    }

    /// Returns the stream.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Makes an error of a driver's. A context that has ended, or that an illegal access has
    /// broken, is a lost device.
    fn error(&self, doing: &str, error: CudaError) -> DeviceError {
        let is_lost = error.code().is_some_and(|code| code.is_context_gone() || code.is_context_broken());
        let error = DeviceError::refused(self.name(), doing, error).started();
        if is_lost { error.lost() } else { error }
    }

    /// Starts copies, and records `done` behind those that were started.
    fn start(
        &self,
        doing: &str,
        copies: &[DeviceCopy],
        done: &CudaEvent,
        copy: impl Fn(&DeviceCopy) -> Result<(), CudaError>,
    ) -> Result<(), DeviceError> {
        let failed = copies.iter().find_map(|one| copy(one).err());
        if let Err(error) = done.record(&self.stream) {
            // Nobody can tell when the copies end.
            return Err(self.error("recording the end of a copy", error).lost());
        }
        failed.map_or(Ok(()), |error| Err(self.error(doing, error)))
    }
}

impl CopyDevice for CudaDevice {
    type Event = CudaEvent;

    fn name(&self) -> String {
        format!("GPU {}", self.stream.context().gpu().ordinal())
    }

    fn new_event(&self) -> Result<CudaEvent, DeviceError> {
        CudaEvent::new(self.stream.context()).map_err(|error| self.error("making an event", error))
    }

    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], done: &CudaEvent) -> Result<(), DeviceError> {
        self.start("starting a copy to the device", copies, done, |copy| {
            let from = std::ptr::slice_from_raw_parts(copy.host, copy.bytes);
            // SAFETY: the caller guarantees both sides.
            unsafe { self.stream.copy_to_device(from, copy.address) }
        })
    }

    unsafe fn copy_to_host(&self, copies: &[DeviceCopy], done: &CudaEvent) -> Result<(), DeviceError> {
        self.start("starting a copy to the host", copies, done, |copy| {
            let to = std::ptr::slice_from_raw_parts_mut(copy.host, copy.bytes);
            // SAFETY: the caller guarantees both sides.
            unsafe { self.stream.copy_to_host(DeviceSpan::new(copy.address, copy.bytes), to) }
        })
    }

    fn is_complete(&self, event: &CudaEvent) -> Result<bool, DeviceError> {
        event.is_complete().map_err(|error| self.error("copying", error))
    }

    fn wait(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        event.synchronize().map_err(|error| self.error("copying", error))
    }
}

// SAFETY: the memory stays at its address until it is dropped.
unsafe impl DeviceBuffer for DeviceMemory {
    fn address(&self) -> u64 {
        DeviceMemory::address(self)
    }

    fn bytes(&self) -> u64 {
        self.span().bytes() as u64
    }
}
