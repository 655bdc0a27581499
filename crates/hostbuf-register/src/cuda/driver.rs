//! CUDA's driver, looked for at run time: its functions as far as they are called here, and what it
//! answers.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult as Known};

/// The driver's functions. Each answers with a number: a newer driver has answers that nobody has a
/// name for yet, so they are not declared as an enum's.
pub(super) struct Driver {
    pub(super) initialise: unsafe extern "C" fn(c_uint) -> c_uint,
    pub(super) version: unsafe extern "C" fn(*mut c_int) -> c_uint,
    pub(super) count: unsafe extern "C" fn(*mut c_int) -> c_uint,
    pub(super) device: unsafe extern "C" fn(*mut sys::CUdevice, c_int) -> c_uint,
    pub(super) attribute: unsafe extern "C" fn(*mut c_int, c_uint, sys::CUdevice) -> c_uint,
    pub(super) device_name: unsafe extern "C" fn(*mut c_char, c_int, sys::CUdevice) -> c_uint,
    pub(super) retain: unsafe extern "C" fn(*mut sys::CUcontext, sys::CUdevice) -> c_uint,
    pub(super) release: unsafe extern "C" fn(sys::CUdevice) -> c_uint,
    pub(super) push: unsafe extern "C" fn(sys::CUcontext) -> c_uint,
    pub(super) pop: unsafe extern "C" fn(*mut sys::CUcontext) -> c_uint,
    pub(super) register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_uint,
    pub(super) unregister: unsafe extern "C" fn(*mut c_void) -> c_uint,
    pub(super) device_pointer: unsafe extern "C" fn(*mut sys::CUdeviceptr, *mut c_void, c_uint) -> c_uint,
    pub(super) error_name: unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint,
}

/// # Errors
/// The driver has no such function.
fn function<F: Copy>(name: &[u8]) -> Result<F, String> {
    // SAFETY: libcuda is there, as whoever calls this has seen; F is the function's type in the
    // driver's interface.
    unsafe { sys::culib().get::<F>(name) }.map(|found| *found).map_err(|_| {
        let name = String::from_utf8_lossy(name);
        format!("the driver has no {name}: install a newer one")
    })
}

impl Driver {
    /// The driver of this machine, found and initialised once; and how many devices it has.
    ///
    /// # Errors
    /// Why there is none, or no device, and what to do.
    pub(super) fn find() -> Result<(&'static Driver, c_int), String> {
        static FOUND: OnceLock<Driver> = OnceLock::new();
        let driver = match FOUND.get() {
            Some(driver) => driver,
            None => {
                let driver = Driver::load()?;
                FOUND.get_or_init(|| driver)
            }
        };
        // SAFETY: it may be called again and again.
        driver.check(unsafe { (driver.initialise)(0) }).map_err(|code| driver.explain("cuInit", code))?;
        let mut count = 0;
        // SAFETY: count is this function's.
        let counted = unsafe { (driver.count)(&raw mut count) };
        driver.check(counted).map_err(|code| driver.explain("cuDeviceGetCount", code))?;
        match count {
            0 => Err("there is no GPU, or CUDA_VISIBLE_DEVICES hides it".into()),
            count => Ok((driver, count)),
        }
    }

    fn load() -> Result<Driver, String> {
        // SAFETY: loads libcuda, whose constructors need nothing.
        if !unsafe { sys::is_culib_present() } {
            let why =
                "there is no libcuda.so.1: install NVIDIA's driver, or give the container its libraries";
            return Err(why.into());
        }
        Ok(Driver {
            initialise: function(b"cuInit")?,
            version: function(b"cuDriverGetVersion")?,
            count: function(b"cuDeviceGetCount")?,
            device: function(b"cuDeviceGet")?,
            attribute: function(b"cuDeviceGetAttribute")?,
            device_name: function(b"cuDeviceGetName")?,
            retain: function(b"cuDevicePrimaryCtxRetain")?,
            release: function(b"cuDevicePrimaryCtxRelease_v2")?,
            push: function(b"cuCtxPushCurrent_v2")?,
            pop: function(b"cuCtxPopCurrent_v2")?,
            register: function(b"cuMemHostRegister_v2")?,
            unregister: function(b"cuMemHostUnregister")?,
            device_pointer: function(b"cuMemHostGetDevicePointer_v2")?,
            error_name: function(b"cuGetErrorName")?,
        })
    }

    /// Returns whether the driver reports that `device` can register memory that is mapped
    /// read-only, or `None` if the driver does not know the attribute.
    pub(super) fn registers_read_only(&self, device: sys::CUdevice) -> Option<bool> {
        const ATTRIBUTE: c_uint =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as c_uint;
        let mut value = 0;
        // SAFETY: `value` is a local variable; the driver returns an error for an unknown attribute
        // or device.
        let answer = unsafe { (self.attribute)(&raw mut value, ATTRIBUTE, device) };
        self.check(answer).ok().map(|()| value != 0)
    }

    /// An answer as a result.
    pub(super) fn check(&self, answer: c_uint) -> Result<(), Code> {
        if answer == Known::CUDA_SUCCESS as c_uint { Ok(()) } else { Err(Code(answer)) }
    }

    /// Describes the call, the driver's error, and the remedy.
    pub(super) fn explain(&self, doing: &str, code: Code) -> String {
        format!("{doing} gives {} ({}): {}", self.name_of(code), code.0, code.advice())
    }

    fn name_of(&self, code: Code) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver sets the pointer to a static string of its own.
        let found = unsafe { (self.error_name)(code.0, &raw mut text) };
        if self.check(found).is_err() || text.is_null() {
            return "an error without a name".into();
        }
        // SAFETY: a static, NUL-terminated string of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// An error code of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(c_uint);

impl Code {
    /// Returns whether the code is `known`.
    pub(super) fn is(self, known: Known) -> bool {
        self.0 == known as c_uint
    }

    /// Returns whether the call may succeed if no other process registers at the same time. This
    /// includes unknown codes, since drivers return different ones in this case.
    pub(super) fn may_pass(self) -> bool {
        !LASTING.iter().any(|&known| self.is(known)) && !BROKEN.iter().any(|&known| self.is(known))
    }

    /// Returns the meaning of the code, and the remedy.
    fn advice(self) -> &'static str {
        let row = ADVICE.iter().find(|(codes, _)| codes.iter().any(|&known| self.is(known)));
        row.map_or("see the CUDA driver API's list of errors", |(_, advice)| advice)
    }
}

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
    Known::CUDA_ERROR_DEINITIALIZED,
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

const ADVICE: &[(&[Known], &str)] = &[
    (
        &[Known::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED],
        "a part of it is registered already, perhaps by another library: use that registration, or end it first",
    ),
    (
        &[Known::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED],
        "the driver does not know it (any more): somebody else ended the registration",
    ),
    (
        &[Known::CUDA_ERROR_INVALID_VALUE],
        "not all of it is mapped, or it is mapped read-only and writing was asked (ask for reading only)",
    ),
    (
        &[Known::CUDA_ERROR_OUT_OF_MEMORY],
        "the driver has no room for it: end other registrations, or free memory of the host or the GPU",
    ),
    (
        &[Known::CUDA_ERROR_NOT_SUPPORTED, Known::CUDA_ERROR_NOT_PERMITTED],
        "the driver cannot register memory of this kind; copy it into memory of another kind",
    ),
    (&[Known::CUDA_ERROR_NO_DEVICE], "there is no GPU, or CUDA_VISIBLE_DEVICES hides it"),
    (&[Known::CUDA_ERROR_INVALID_DEVICE], "there is no such GPU, or CUDA_VISIBLE_DEVICES hides it"),
    (
        &[Known::CUDA_ERROR_STUB_LIBRARY],
        "the libcuda.so that was found is the toolkit's stub: take its folder out of LD_LIBRARY_PATH",
    ),
    (
        &[Known::CUDA_ERROR_NOT_INITIALIZED],
        "the driver is not initialised in this process; in a child that was forked from a user of CUDA it cannot be",
    ),
    (&[Known::CUDA_ERROR_DEINITIALIZED], "the process is ending, and the driver has ended already"),
    (
        &[Known::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH],
        "libcuda.so and the kernel's driver differ: install one version",
    ),
    (
        BROKEN,
        "an earlier operation of this process broke the context, and everything fails with its error from then on: \
         mend that operation and start the process again",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_an_advice_also_one_that_nobody_knows() {
        assert!(Code(Known::CUDA_ERROR_NO_DEVICE as c_uint).advice().contains("CUDA_VISIBLE_DEVICES"));
        assert!(Code(Known::CUDA_ERROR_ASSERT as c_uint).advice().contains("start the process again"));
        assert!(Code(4_000_000_000).advice().contains("list of errors"));
    }

    #[test]
    fn only_errors_that_another_process_can_cause_are_retried() {
        for known in
            [Known::CUDA_ERROR_OUT_OF_MEMORY, Known::CUDA_ERROR_INVALID_VALUE, Known::CUDA_ERROR_UNKNOWN]
        {
            assert!(Code(known as c_uint).may_pass(), "{known:?}");
        }
        for known in [Known::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, Known::CUDA_ERROR_ILLEGAL_ADDRESS] {
            assert!(!Code(known as c_uint).may_pass(), "{known:?}");
        }
        assert!(Code(4_000_000_000).may_pass());
    }
}
