//! Reserved addresses of GPUs.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;

use hostbuf_os::Bytes;

use crate::cuda_error::CudaError;
use crate::device_span::DeviceSpan;
use crate::driver_caller::DriverCaller;
use crate::functions::VirtualMemoryFunctions;
use crate::physical_memory::rounded;

/// The largest number of ranges that are kept while the driver is asked for one at an address. The
/// driver has room for at most 32 MiB of its own between its ranges, 16 of the smallest ones.
const MAX_OTHERS: usize = 64;

/// A reserved range of addresses without memory behind it. The GPUs and the CPUs of a process share
/// one range of addresses, so nothing else is mapped there.
pub struct VirtualRange {
    caller: DriverCaller,
    span: DeviceSpan,
    functions: &'static VirtualMemoryFunctions,
}

impl VirtualRange {
    /// Reserves addresses for at least `bytes` bytes, rounded up to the GPU's granularity: at the
    /// address `at`, or anywhere.
    ///
    /// The driver ignores the requested address while a range of this size fits into addresses that
    /// it has already reserved for itself (seen with CUDA 13.0). So the ranges that it returns
    /// instead are kept until it grants the one at `at`, and are then freed.
    ///
    /// The driver takes addresses from the process in blocks of 32 MiB: `at` should be a multiple
    /// of that. It may refuse a block in which this process had mapped something when it
    /// initialised the driver, and one for which it was asked while something was mapped there,
    /// even after that is unmapped (all seen with driver 580).
    ///
    /// # Errors
    /// [`CudaError::Invalid`] if `at` is taken, and the driver's.
    #[doc(alias = "cuMemAddressReserve")]
    pub fn reserve(
        caller: impl Into<DriverCaller>,
        bytes: usize,
        at: Option<u64>,
    ) -> Result<VirtualRange, CudaError> {
        let caller = caller.into();
        let bytes = rounded(&caller, bytes)?;
        let mut others: Vec<VirtualRange> = Vec::new();
        loop {
            let range = VirtualRange::ask(&caller, bytes, at.unwrap_or(0))?;
            let Some(at) = at.filter(|at| *at != range.address()) else { return Ok(range) };
            others.push(range);
            if others.len() == MAX_OTHERS {
                return Err(CudaError::invalid(format!(
                    "reserving {} at {at:#x} for {}: the address is taken or unsuitable, and the driver offers {:#x}; \
                     choose another one",
                    Bytes(bytes as u64),
                    caller.gpu(),
                    others[0].address()
                )));
            }
        }
    }

    /// Reserves addresses, at `hint` if the driver grants it.
    fn ask(caller: &DriverCaller, bytes: usize, hint: u64) -> Result<VirtualRange, CudaError> {
        let functions = caller.driver().functions().virtual_memory()?;
        let mut address = 0;
        // SAFETY: `address` is a local variable; the driver takes the last address for a hint.
        caller.call(format_args!("cuMemAddressReserve of {}", Bytes(bytes as u64)), || unsafe {
            (functions.reserve)(&raw mut address, bytes, 0, hint, 0)
        })?;
        Ok(VirtualRange { caller: caller.clone(), span: DeviceSpan::new(address, bytes), functions })
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
        self.caller.end(object, "cuMemAddressFree", || unsafe {
            (self.functions.free)(self.address(), self.bytes())
        });
    }
}
