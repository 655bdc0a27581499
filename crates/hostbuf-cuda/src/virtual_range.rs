//! Reserved addresses of GPUs.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;

use hostbuf_os::Bytes;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::device_span::DeviceSpan;
use crate::functions::VirtualMemoryFunctions;
use crate::physical_memory::rounded;

/// A reserved range of addresses without memory behind it. The GPUs and the CPUs of a process share
/// one range of addresses, so nothing else is mapped there.
pub struct VirtualRange {
    context: CudaContext,
    span: DeviceSpan,
    functions: &'static VirtualMemoryFunctions,
}

impl VirtualRange {
    /// Reserves addresses for at least `bytes` bytes, rounded up to the GPU's granularity: at the
    /// address `at`, or anywhere.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] if `at` is taken, and the driver's.
    #[doc(alias = "cuMemAddressReserve")]
    pub fn reserve(context: &CudaContext, bytes: usize, at: Option<u64>) -> Result<VirtualRange, CudaError> {
        let functions = context.driver().functions().virtual_memory()?;
        let bytes = rounded(context, bytes)?;
        let mut address = 0;
        // SAFETY: `address` is a local variable; the driver takes the last address for a hint.
        context.call(format_args!("cuMemAddressReserve of {}", Bytes(bytes as u64)), || unsafe {
            (functions.reserve)(&raw mut address, bytes, 0, at.unwrap_or(0), 0)
        })?;
        // The value owns the addresses before they are given up again.
        let range =
            VirtualRange { context: context.clone(), span: DeviceSpan::new(address, bytes), functions };
        match at {
            Some(at) if at != address => Err(CudaError::invalid(format!(
                "reserving {} at {at:#x} for {}: the address is taken or unsuitable, and the driver offers {address:#x}; \
                 choose another one",
                Bytes(bytes as u64),
                context.gpu()
            ))),
            _ => Ok(range),
        }
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.span.address()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.span.bytes()
    }

    pub(crate) fn span(&self) -> DeviceSpan {
        self.span
    }
}

impl fmt::Debug for VirtualRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualRange").field("span", &self.span).finish_non_exhaustive()
    }
}

impl Drop for VirtualRange {
    fn drop(&mut self) {
        let object = format!("the range of {} at {:#x}", Bytes(self.bytes() as u64), self.address());
        // SAFETY: reserved by `reserve` and freed once; a mapping owns its range and ends first.
        self.context.end(object, "cuMemAddressFree", || unsafe {
            (self.functions.free)(self.address(), self.bytes())
        });
    }
}
