//! Copies to a GPU.

#![allow(unsafe_code, reason = "starts copies of the CUDA driver")]

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, Driver, HostAccess, PageLockedMemory};

use crate::frame_message::{FRAME, is_whole};

/// A GPU with memory for one frame.
pub(crate) struct GpuCopies {
    stream: CudaStream,
    frame: DeviceMemory,
    own: PageLockedMemory,
    context: CudaContext,
}

impl GpuCopies {
    /// Opens the first GPU.
    pub(crate) fn new() -> Result<GpuCopies, String> {
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
    pub(crate) fn copy(&self, from: *const [u8]) -> Result<(), String> {
        // SAFETY: the caller keeps the frame until this returns, and both have the same length.
        let copied = unsafe { self.stream.copy_to_device(from, self.frame.address()) };
        copied.and_then(|()| self.stream.synchronize()).map_err(|error| error.to_string())
    }

    /// Copies a frame into page-locked memory of this process, and from there to the GPU.
    pub(crate) fn copy_through_own(&self, from: &[u8]) -> Result<(), String> {
        let own = std::ptr::slice_from_raw_parts_mut(self.own.as_ptr(), FRAME);
        // SAFETY: the memory belongs to this object, and no copy is in progress.
        unsafe { (*own).copy_from_slice(from) };
        self.copy(own)
    }

    /// Copies page-locked memory of this process to the GPU.
    pub(crate) fn copy_own(&self) -> Result<(), String> {
        self.copy(std::ptr::slice_from_raw_parts(self.own.as_ptr(), FRAME))
    }

    /// Registers a frame, copies it and ends the registration.
    pub(crate) fn register_and_copy(&self, from: *const [u8]) -> Result<(), String> {
        let text = |error: hostbuf_cuda::CudaError| error.to_string();
        let start = from.cast::<u8>() as usize;
        let pages = start..(start + FRAME).next_multiple_of(4096);
        let current = self.context.make_current().map_err(text)?;
        current.register_host(pages, HostAccess::ReadWrite).map_err(text)?;
        let copied = self.copy(from);
        current.unregister_host(start).map_err(text)?;
        copied
    }

    /// Returns whether the GPU has a whole frame with this stamp.
    pub(crate) fn has(&self, stamp: u64) -> Result<bool, String> {
        let mut back = vec![0; FRAME];
        // SAFETY: both belong to this function until the stream is synchronised.
        let copied = unsafe { self.stream.copy_to_host(self.frame.span(), &raw mut back[..]) };
        copied.and_then(|()| self.stream.synchronize()).map_err(|error| error.to_string())?;
        Ok(is_whole(&back, stamp))
    }
}
