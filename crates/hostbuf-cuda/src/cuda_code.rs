//! Error codes of the driver.

use std::ffi::c_uint;

use cudarc::driver::sys::CUresult as Known;

/// An error code of the driver.
///
/// A newer driver may return codes that this version does not know, so it is a number.
#[doc(alias = "CUresult")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CudaCode(c_uint);

impl CudaCode {
    /// The GPU or the host has too little memory.
    pub const OUT_OF_MEMORY: CudaCode = CudaCode::known(Known::CUDA_ERROR_OUT_OF_MEMORY);
    /// The driver has shut down, since the process exits.
    pub const DEINITIALIZED: CudaCode = CudaCode::known(Known::CUDA_ERROR_DEINITIALIZED);
    /// The context was reset.
    pub const CONTEXT_IS_DESTROYED: CudaCode = CudaCode::known(Known::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    /// The calling thread has no current context.
    pub const INVALID_CONTEXT: CudaCode = CudaCode::known(Known::CUDA_ERROR_INVALID_CONTEXT);
    /// There is no such GPU, or it does not reach the memory.
    pub const INVALID_DEVICE: CudaCode = CudaCode::known(Known::CUDA_ERROR_INVALID_DEVICE);
    /// The work of a stream or an event has not ended.
    pub const NOT_READY: CudaCode = CudaCode::known(Known::CUDA_ERROR_NOT_READY);
    /// The driver or the GPU does not support the operation.
    pub const NOT_SUPPORTED: CudaCode = CudaCode::known(Known::CUDA_ERROR_NOT_SUPPORTED);

    const fn known(known: Known) -> CudaCode {
        CudaCode(known as c_uint)
    }

    /// Returns the error that a function of the driver returned, or `None` for success.
    pub(crate) fn of(answer: c_uint) -> Option<CudaCode> {
        (answer != Known::CUDA_SUCCESS as c_uint).then_some(CudaCode(answer))
    }

    /// Returns the driver's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    fn is_one_of(self, codes: &[Known]) -> bool {
        codes.iter().any(|&known| self == CudaCode::known(known))
    }

    /// Returns whether a registration may succeed if no other process registers at the same time.
    /// This includes unknown codes, since drivers return different ones in this case.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        !self.is_one_of(LASTING) && !self.is_one_of(BROKEN) && !self.is_context_gone()
    }

    /// Returns whether the context has ended, because the process exits or because somebody reset
    /// it. All that was made in it has ended too, so that nothing is left to be released.
    #[must_use]
    pub fn is_context_gone(self) -> bool {
        self == CudaCode::DEINITIALIZED || self == CudaCode::CONTEXT_IS_DESTROYED
    }

    /// Returns whether an earlier operation broke the context, for example a kernel that wrote to
    /// an illegal address. All operations fail with the same code from then on, and only a new
    /// process helps.
    #[must_use]
    pub fn is_context_broken(self) -> bool {
        self.is_one_of(BROKEN)
    }

    /// Returns the cause of the code in a call that is described by `doing`, and the remedy.
    pub(crate) fn advice(self, doing: &str) -> &'static str {
        let of_call = ADVICE_OF_CALLS.iter().filter(|(function, _, _)| doing.starts_with(function));
        let mut rows = of_call.map(|&(_, codes, advice)| (codes, advice)).chain(ADVICE.iter().copied());
        let row = rows.find(|(codes, _)| self.is_one_of(codes));
        row.map_or("see the CUDA driver API's list of errors", |(_, advice)| advice)
    }
}

/// Errors of operations that are not supported.
const UNSUPPORTED: &[Known] = &[Known::CUDA_ERROR_NOT_SUPPORTED, Known::CUDA_ERROR_NOT_PERMITTED];

/// Errors that a retry cannot resolve.
const LASTING: &[Known] = &[
    Known::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
    Known::CUDA_ERROR_NOT_SUPPORTED,
    Known::CUDA_ERROR_NOT_PERMITTED,
    Known::CUDA_ERROR_NO_DEVICE,
    Known::CUDA_ERROR_INVALID_DEVICE,
    Known::CUDA_ERROR_INVALID_CONTEXT,
    Known::CUDA_ERROR_STUB_LIBRARY,
    Known::CUDA_ERROR_NOT_INITIALIZED,
    Known::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
];

/// Errors of a context that an earlier operation has broken.
const BROKEN: &[Known] = &[
    Known::CUDA_ERROR_ILLEGAL_ADDRESS,
    Known::CUDA_ERROR_LAUNCH_FAILED,
    Known::CUDA_ERROR_LAUNCH_TIMEOUT,
    Known::CUDA_ERROR_ASSERT,
    Known::CUDA_ERROR_HARDWARE_STACK_ERROR,
    Known::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    Known::CUDA_ERROR_MISALIGNED_ADDRESS,
    Known::CUDA_ERROR_INVALID_PC,
    Known::CUDA_ERROR_ECC_UNCORRECTABLE,
];

/// The causes and remedies of codes in calls of one function.
const ADVICE_OF_CALLS: &[(&str, &[Known], &str)] = &[
    (
        "cuMemHostRegister",
        &[Known::CUDA_ERROR_INVALID_VALUE],
        "a part of the range is not mapped, or it is mapped read-only and write access was requested (request read access only)",
    ),
    (
        "cuMemHostRegister",
        &[Known::CUDA_ERROR_OUT_OF_MEMORY],
        "the driver has no room for the registration: end other registrations, or free memory of the host or the GPU",
    ),
    (
        "cuMemHostRegister",
        UNSUPPORTED,
        "the driver cannot register memory of this kind; copy it into memory of another kind",
    ),
    (
        // The code depends on the driver's version.
        "cuIpcOpenMemHandle",
        &[Known::CUDA_ERROR_INVALID_CONTEXT, Known::CUDA_ERROR_INVALID_VALUE],
        "the exporter must be another process, in the same PID namespace (--pid=host), and must still have the memory, \
         which it allocated with cuMemAlloc",
    ),
];

/// The causes and remedies of codes in other calls.
const ADVICE: &[(&[Known], &str)] = &[
    (
        &[Known::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED],
        "a part of the range is registered already, perhaps by another library: use that registration, or end it first",
    ),
    (
        &[Known::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED],
        "the driver has no such registration: another library has ended it",
    ),
    (
        &[Known::CUDA_ERROR_INVALID_VALUE],
        "an address, a size or a handle is not valid for this GPU, or its owner has ended it",
    ),
    (
        UNSUPPORTED,
        "the driver or the GPU does not support this, or forbids it to this process: see CudaGpu::supports",
    ),
    (&[Known::CUDA_ERROR_NO_DEVICE], "there is no GPU, or CUDA_VISIBLE_DEVICES hides it"),
    (&[Known::CUDA_ERROR_INVALID_DEVICE], "there is no such GPU, or CUDA_VISIBLE_DEVICES hides it"),
    (
        &[Known::CUDA_ERROR_STUB_LIBRARY],
        "the libcuda.so that was found is the toolkit's stub: take its folder out of LD_LIBRARY_PATH",
    ),
    (
        &[Known::CUDA_ERROR_NOT_INITIALIZED],
        "the driver is not initialised in this process; a child of a process that has used CUDA cannot initialise it",
    ),
    (
        &[Known::CUDA_ERROR_OUT_OF_MEMORY],
        "the GPU or the host has too little free memory: free some (nvidia-smi lists the processes), or request less",
    ),
    (
        &[Known::CUDA_ERROR_CONTEXT_IS_DESTROYED],
        "another part of the process has reset the context (cudaDeviceReset), which ended all that was made in it: \
         make it again in a new context",
    ),
    (
        &[Known::CUDA_ERROR_INVALID_CONTEXT],
        "the context is not valid in this process or on this GPU: retain it again",
    ),
    (
        &[Known::CUDA_ERROR_INVALID_HANDLE],
        "the stream, event or shared handle has ended, or belongs to another context: its owner must keep it",
    ),
    (
        &[Known::CUDA_ERROR_ALREADY_MAPPED],
        "this process has opened the handle already: keep that object and share it",
    ),
    (&[Known::CUDA_ERROR_NOT_READY], "the work has not ended: synchronize first"),
    (&[Known::CUDA_ERROR_DEINITIALIZED], "the process is exiting, and the driver has shut down already"),
    (
        &[Known::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH],
        "libcuda.so and the kernel's driver differ: install one version",
    ),
    (
        BROKEN,
        "an earlier operation of this process broke the context, and all later operations fail with its error: \
         correct that operation and start the process again",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn code(known: Known) -> CudaCode {
        CudaCode::known(known)
    }

    #[test]
    fn every_code_has_advice_also_an_unknown_one() {
        let advice = |known| code(known).advice("cuInit");
        assert!(advice(Known::CUDA_ERROR_NO_DEVICE).contains("CUDA_VISIBLE_DEVICES"));
        assert!(advice(Known::CUDA_ERROR_ASSERT).contains("start the process again"));
        assert!(CudaCode(4_000_000_000).advice("cuInit").contains("list of errors"));
    }

    #[test]
    fn advice_depends_on_the_call() {
        let unsupported = CudaCode::NOT_SUPPORTED;
        assert!(unsupported.advice("cuMemHostRegister").contains("register memory of this kind"));
        assert!(CudaCode::OUT_OF_MEMORY.advice("cuMemHostRegister").contains("end other registrations"));
        assert!(CudaCode::OUT_OF_MEMORY.advice("cuMemAlloc of 1 GiB").contains("nvidia-smi"));
        assert!(unsupported.advice("cuMemCreate of 2 MiB").contains("CudaGpu::supports"));
        let context = code(Known::CUDA_ERROR_INVALID_CONTEXT);
        assert!(context.advice("cuIpcOpenMemHandle").contains("PID namespace"));
        assert!(context.advice("cuMemAlloc").contains("retain it again"));
    }

    #[test]
    fn only_errors_that_another_process_can_cause_are_retried() {
        for known in
            [Known::CUDA_ERROR_OUT_OF_MEMORY, Known::CUDA_ERROR_INVALID_VALUE, Known::CUDA_ERROR_UNKNOWN]
        {
            assert!(code(known).is_retryable(), "{known:?}");
        }
        let lasting = [
            Known::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            Known::CUDA_ERROR_ILLEGAL_ADDRESS,
            Known::CUDA_ERROR_DEINITIALIZED,
            Known::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        ];
        for known in lasting {
            assert!(!code(known).is_retryable(), "{known:?}");
        }
        assert!(CudaCode(4_000_000_000).is_retryable());
    }

    #[test]
    fn a_broken_context_is_distinguished_from_one_that_is_gone() {
        let broken = code(Known::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(broken.is_context_broken() && !broken.is_context_gone());
        for gone in [CudaCode::DEINITIALIZED, CudaCode::CONTEXT_IS_DESTROYED] {
            assert!(gone.is_context_gone() && !gone.is_context_broken());
        }
    }
}
