//! Registration of host memory with the driver.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::{c_uint, c_void};
use std::ops::Range;

use cudarc::driver::sys;
use hostbuf_os::Bytes;

use crate::cuda_context::CurrentContext;
use crate::cuda_error::CudaError;

/// The access of the GPUs to registered host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostAccess {
    /// Reading and writing.
    ReadWrite,
    /// Reading only, which memory that is mapped read-only needs:
    /// [`GpuFeature::ReadOnlyRegistration`](crate::GpuFeature::ReadOnlyRegistration).
    #[doc(alias = "CU_MEMHOSTREGISTER_READ_ONLY")]
    ReadOnly,
}

impl CurrentContext<'_> {
    /// Registers a range of addresses, and returns the GPU's address of its first byte. Copies
    /// between the range and all GPUs of the process then run at full speed, and kernels may use
    /// it.
    ///
    /// The driver pins whole pages until [`unregister_host`](CurrentContext::unregister_host) ends
    /// the registration, and refuses a range that overlaps a registered one. This is a primitive:
    /// nothing ends the registration by itself, also not when the memory is unmapped. The GPUs then
    /// access the old pages.
    ///
    /// # Errors
    /// The driver's; nothing is registered then.
    #[doc(alias = "cuMemHostRegister")]
    pub fn register_host(&self, range: Range<usize>, access: HostAccess) -> Result<u64, CudaError> {
        let driver = self.context().driver();
        let (functions, start) = (&driver.functions().basic, range.start as *mut c_void);
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE
            | sys::CU_MEMHOSTREGISTER_DEVICEMAP
            | match access {
                HostAccess::ReadWrite => 0,
                HostAccess::ReadOnly => sys::CU_MEMHOSTREGISTER_READ_ONLY,
            };
        // SAFETY: the driver pins the pages and changes no content; it returns an error for
        // unmapped memory.
        driver.checked(unsafe { (functions.register)(start, range.len(), flags) }, "cuMemHostRegister")?;
        self.device_address(range.start).inspect_err(|_| {
            if let Err(error) = self.unregister_host(range.start) {
                let bytes = Bytes(range.len() as u64);
                tracing::error!("{:#x} ({bytes}) stays registered: {error}", range.start);
            }
        })
    }

    /// Ends the registration that begins at `start`. It has ended already if the context is gone.
    ///
    /// # Errors
    /// The driver's, including if no registration begins there.
    #[doc(alias = "cuMemHostUnregister")]
    pub fn unregister_host(&self, start: usize) -> Result<(), CudaError> {
        let driver = self.context().driver();
        // SAFETY: the driver returns an error if no registration begins at this address.
        let answer = unsafe { (driver.functions().basic.unregister)(start as *mut c_void) };
        match driver.checked(answer, "cuMemHostUnregister") {
            Err(error) if error.is_context_gone() => Ok(()),
            result => result,
        }
    }

    /// Returns the GPU's address of registered or page-locked host memory.
    pub(crate) fn device_address(&self, host: usize) -> Result<u64, CudaError> {
        const NO_FLAGS: c_uint = 0;
        let (driver, mut device) = (self.context().driver(), 0);
        // SAFETY: `device` is a local variable; the driver returns an error for an address that it
        // does not know.
        let answer = unsafe {
            (driver.functions().basic.device_pointer)(&raw mut device, host as *mut c_void, NO_FLAGS)
        };
        driver.checked(answer, "cuMemHostGetDevicePointer").map(|()| device)
    }
}
