//! Ranges of a GPU's addresses.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use crate::cuda_error::CudaError;
use crate::driver_caller::DriverCaller;
use crate::gpu_access::GpuAccess;

/// A range of a GPU's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpan {
    address: u64,
    bytes: usize,
}

impl DeviceSpan {
    /// Makes a span of its first address and its length in bytes. The driver checks it when it is
    /// used.
    #[must_use]
    pub fn new(address: u64, bytes: usize) -> DeviceSpan {
        DeviceSpan { address, bytes }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Changes the access of GPUs to memory that is mapped at all of these addresses
    /// ([`MappedMemory`](crate::MappedMemory)), by this or another copy of the library. The other
    /// GPUs keep their access. An empty list changes nothing.
    ///
    /// # Errors
    /// The driver's, for example if nothing is mapped there.
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(self, access: &[GpuAccess]) -> Result<(), CudaError> {
        let Some(first) = access.first() else { return Ok(()) };
        let caller = DriverCaller::from(first.gpu());
        let functions = caller.driver().functions().virtual_memory()?;
        let descriptors: Vec<_> = access.iter().map(|one| one.descriptor()).collect();
        // SAFETY: `descriptors` has the length that is passed, and the driver checks the range. No
        // byte changes.
        caller.call(format_args!("cuMemSetAccess at {:#x}", self.address), || unsafe {
            (functions.set_access)(self.address, self.bytes, descriptors.as_ptr(), descriptors.len())
        })
    }
}
