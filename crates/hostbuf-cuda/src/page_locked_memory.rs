//! Host memory that the driver allocates.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;
use std::ptr::null_mut;

use cudarc::driver::sys;
use hostbuf_os::Bytes;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::functions::AllocationFunctions;

/// Page-locked host memory of the driver, for all GPUs of the process. Benchmarks compare
/// registered memory with it.
///
/// Work that uses it must have ended before it is dropped.
#[doc(alias = "cudaMallocHost")]
pub struct PageLockedMemory {
    context: CudaContext,
    start: usize,
    bytes: usize,
    device_address: u64,
    functions: &'static AllocationFunctions,
}

impl PageLockedMemory {
    /// Allocates memory, whose content is undefined.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuMemHostAlloc")]
    pub fn new(context: &CudaContext, bytes: usize) -> Result<PageLockedMemory, CudaError> {
        let functions = context.driver().functions().allocations()?;
        let mut start = null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        context.call(format_args!("cuMemHostAlloc of {}", Bytes(bytes as u64)), || {
            // SAFETY: `start` is a local variable.
            unsafe { (functions.allocate_host)(&raw mut start, bytes, flags) }
        })?;
        // The value owns the memory before the next call can fail.
        let start = start as usize;
        let mut memory =
            PageLockedMemory { context: context.clone(), start, bytes, device_address: 0, functions };
        memory.device_address = context.make_current()?.device_address(start)?;
        Ok(memory)
    }

    /// Returns the first byte, which is valid as long as `self` lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start as *mut u8
    }

    /// Returns the GPU's address of the first byte.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for PageLockedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageLockedMemory { start, bytes, .. } = self;
        f.debug_struct("PageLockedMemory").field("start", start).field("bytes", bytes).finish_non_exhaustive()
    }
}

impl Drop for PageLockedMemory {
    fn drop(&mut self) {
        let object = format_args!("{:#x} ({})", self.start, Bytes(self.bytes as u64)).to_string();
        // SAFETY: allocated by `new`, and freed once.
        self.context
            .end(object, "cuMemFreeHost", || unsafe { (self.functions.free_host)(self.as_ptr().cast()) });
    }
}
