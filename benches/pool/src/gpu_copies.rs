//! Copies to a GPU.

#![allow(unsafe_code, reason = "starts copies of the CUDA driver")]

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, Driver, HostAccess, PageLockedMemory};
use hostbuf_pool::adopt::Adopted;
use hostbuf_register::Device;

use crate::frame::{FRAME, PAGE, is_whole};

/// A GPU with memory for one frame.
#[derive(Debug)]
pub struct GpuCopies {
    stream: CudaStream,
    frame: DeviceMemory,
    own: PageLockedMemory,
    context: CudaContext,
}

impl GpuCopies {
    /// Opens the first GPU.
    ///
    /// # Errors
    /// The message of the driver, also if there is no GPU.
    pub fn new() -> Result<GpuCopies, String> {
        let open = || {
            let driver = Driver::find()?;
            let gpu = driver.gpus()?.remove(0);
            let context = CudaContext::retain(&gpu)?;
            let stream = CudaStream::new(&context)?;
            let frame = DeviceMemory::new(&context, FRAME)?;
            let own = PageLockedMemory::new(&context, FRAME)?;
            Ok(GpuCopies { stream, frame, own, context })
        };
        open().map_err(|error: hostbuf_cuda::CudaError| error.to_string())
    }

    /// Copies a frame from host memory to the GPU, and waits for it.
    ///
    /// # Errors
    /// The message of the driver.
    pub fn copy(&self, from: &[u8]) -> Result<(), String> {
        // SAFETY: the slice lives until this returns, which waits for the copy.
        unsafe { self.copy_from(from) }
    }

    /// # Safety
    /// The memory stays mapped until this returns.
    unsafe fn copy_from(&self, from: *const [u8]) -> Result<(), String> {
        if from.len() > FRAME {
            return Err(format!("{} bytes are no frame", from.len()));
        }
        // SAFETY: as promised; the frame on the GPU is as long as the longest copy.
        let copied = unsafe { self.stream.copy_to_device(from, self.frame.address()) };
        copied.and_then(|()| self.stream.synchronize()).map_err(|error| error.to_string())
    }

    /// Copies a frame into page-locked memory of this process, and from there to the GPU.
    ///
    /// # Errors
    /// The message of the driver.
    pub fn copy_through_own(&self, from: &[u8]) -> Result<(), String> {
        if from.len() != FRAME {
            return Err(format!("{} bytes are no frame", from.len()));
        }
        let own = std::ptr::slice_from_raw_parts_mut(self.own.as_ptr(), FRAME);
        // SAFETY: the memory belongs to this object, and no copy is in progress.
        unsafe { (*own).copy_from_slice(from) };
        self.copy_own()
    }

    /// Copies page-locked memory of this process to the GPU.
    ///
    /// # Errors
    /// The message of the driver.
    pub fn copy_own(&self) -> Result<(), String> {
        // SAFETY: the memory belongs to this object.
        unsafe { self.copy_from(std::ptr::slice_from_raw_parts(self.own.as_ptr(), FRAME)) }
    }

    /// Copies adopted memory to the GPU.
    ///
    /// # Errors
    /// The message of the driver.
    pub fn copy_adopted(&self, adopted: &Adopted<Device>) -> Result<(), String> {
        let span = adopted.host_span();
        // SAFETY: the caller's object keeps the mapping.
        unsafe { self.copy_from(std::ptr::slice_from_raw_parts(span.start() as *const u8, adopted.len())) }
    }

    /// Registers the pages of a frame, copies it and ends the registration.
    ///
    /// # Errors
    /// The message of the driver.
    pub fn register_and_copy(&self, from: &[u8]) -> Result<(), String> {
        let text = |error: hostbuf_cuda::CudaError| error.to_string();
        let start = from.as_ptr() as usize / PAGE * PAGE;
        let end = (from.as_ptr() as usize + from.len()).next_multiple_of(PAGE);
        let current = self.context.make_current().map_err(text)?;
        current.register_host(start..end, HostAccess::ReadWrite).map_err(text)?;
        let copied = self.copy(from);
        current.unregister_host(start).map_err(text)?;
        copied
    }

    /// Returns whether the GPU has a whole frame with this stamp.
    ///
    /// # Errors
    /// The message of the driver.
    pub fn has(&self, stamp: u64) -> Result<bool, String> {
        let mut back = vec![0; FRAME];
        // SAFETY: both belong to this function until the stream is synchronised.
        let copied = unsafe { self.stream.copy_to_host(self.frame.span(), &raw mut back[..]) };
        copied.and_then(|()| self.stream.synchronize()).map_err(|error| error.to_string())?;
        Ok(is_whole(&back, stamp))
    }
}
