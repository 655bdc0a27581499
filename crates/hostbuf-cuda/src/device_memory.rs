//! Memory of a GPU.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;

use hostbuf_os::Bytes;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::device_span::DeviceSpan;
use crate::driver_caller::DriverCaller;
use crate::functions::AllocationFunctions;

/// Memory of a GPU for this process. Other processes cannot import it;
/// [`PhysicalMemory`](crate::PhysicalMemory) is for them.
///
/// Work that uses it must have ended before it is dropped.
pub struct DeviceMemory {
    context: CudaContext,
    span: DeviceSpan,
    functions: &'static AllocationFunctions,
}

impl DeviceMemory {
    /// Allocates memory, whose content is undefined.
    ///
    /// # Errors
    /// The driver's; [`CudaCode::OUT_OF_MEMORY`](crate::CudaCode::OUT_OF_MEMORY) states how much is free.
    #[doc(alias = "cuMemAlloc")]
    pub fn new(context: &CudaContext, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let functions = context.driver().functions().allocations()?;
        let mut address = 0;
        let request = format_args!("cuMemAlloc of {} on {}", Bytes(bytes as u64), context.gpu()).to_string();
        DriverCaller::from(context).allocate(&request, || {
            // SAFETY: `address` is a local variable.
            unsafe { (functions.allocate)(&raw mut address, bytes) }
        })?;
        Ok(DeviceMemory { context: context.clone(), span: DeviceSpan::new(address, bytes), functions })
    }

    /// Returns the GPU's address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.span.address()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.span.bytes()
    }

    /// Returns all of the memory as a span.
    #[must_use]
    pub fn span(&self) -> DeviceSpan {
        self.span
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("span", &self.span).finish_non_exhaustive()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let object = format_args!("{:#x} ({})", self.address(), Bytes(self.bytes() as u64)).to_string();
        // SAFETY: allocated by `new`, and freed once.
        self.context.end(object, "cuMemFree", || unsafe { (self.functions.free)(self.address()) });
    }
}
