//! The CUDA driver, which is loaded at run time: the functions that hostbuf calls, and their
//! results.

#![allow(unsafe_code, reason = "the driver is loaded at run time and called by foreign functions")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult as Known};

/// The driver's functions. They return integers instead of the enum `CUresult`, since a newer
/// driver may return a code that the enum does not have.
#[doc(hidden)]
#[non_exhaustive]
pub struct Driver {
    pub initialise: unsafe extern "C" fn(c_uint) -> c_uint,
    pub version: unsafe extern "C" fn(*mut c_int) -> c_uint,
    pub count: unsafe extern "C" fn(*mut c_int) -> c_uint,
    pub device: unsafe extern "C" fn(*mut sys::CUdevice, c_int) -> c_uint,
    pub attribute: unsafe extern "C" fn(*mut c_int, c_uint, sys::CUdevice) -> c_uint,
    pub device_name: unsafe extern "C" fn(*mut c_char, c_int, sys::CUdevice) -> c_uint,
    pub retain: unsafe extern "C" fn(*mut sys::CUcontext, sys::CUdevice) -> c_uint,
    pub release: unsafe extern "C" fn(sys::CUdevice) -> c_uint,
    pub push: unsafe extern "C" fn(sys::CUcontext) -> c_uint,
    pub pop: unsafe extern "C" fn(*mut sys::CUcontext) -> c_uint,
    pub register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_uint,
    pub unregister: unsafe extern "C" fn(*mut c_void) -> c_uint,
    pub device_pointer: unsafe extern "C" fn(*mut sys::CUdeviceptr, *mut c_void, c_uint) -> c_uint,
    pub error_name: unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint,
}

/// Looks up a function of the driver.
///
/// # Errors
/// A message if the driver has no such function.
fn function<F: Copy>(name: &[u8]) -> Result<F, String> {
    // SAFETY: the caller has checked that libcuda is present; F is the function's type in the
    // driver's interface.
    unsafe { sys::culib().get::<F>(name) }.map(|found| *found).map_err(|_| {
        let name = String::from_utf8_lossy(name);
        format!("the driver has no {name}: install a newer one")
    })
}

impl Driver {
    /// Loads and initialises the driver, once for the process. Returns it and the number of its
    /// devices.
    ///
    /// # Errors
    /// The reason why there is no driver or no device, and the remedy.
    pub fn find() -> Result<(&'static Driver, c_int), String> {
        static FOUND: OnceLock<Driver> = OnceLock::new();
        let driver = match FOUND.get() {
            Some(driver) => driver,
            None => {
                let driver = Driver::load()?;
                FOUND.get_or_init(|| driver)
            }
        };
        // SAFETY: cuInit may be called several times.
        driver.check(unsafe { (driver.initialise)(0) }).map_err(|code| driver.explain("cuInit", code))?;
        let mut count = 0;
        // SAFETY: `count` is a local variable.
        let counted = unsafe { (driver.count)(&raw mut count) };
        driver.check(counted).map_err(|code| driver.explain("cuDeviceGetCount", code))?;
        match count {
            0 => Err("there is no GPU, or CUDA_VISIBLE_DEVICES hides it".into()),
            count => Ok((driver, count)),
        }
    }

    fn load() -> Result<Driver, String> {
        // SAFETY: loads libcuda, whose constructors have no preconditions.
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
    pub fn registers_read_only(&self, device: sys::CUdevice) -> Option<bool> {
        const ATTRIBUTE: c_uint =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as c_uint;
        let mut value = 0;
        // SAFETY: `value` is a local variable; the driver returns an error for an unknown attribute
        // or device.
        let answer = unsafe { (self.attribute)(&raw mut value, ATTRIBUTE, device) };
        self.check(answer).ok().map(|()| value != 0)
    }

    /// Converts a returned code into a result.
    pub fn check(&self, answer: c_uint) -> Result<(), Code> {
        if answer == Known::CUDA_SUCCESS as c_uint { Ok(()) } else { Err(Code(answer)) }
    }

    /// Describes the call, the driver's error, and the remedy.
    pub fn explain(&self, doing: &str, code: Code) -> String {
        format!("{doing} returned {} ({}): {}", self.name_of(code), code.0, code.advice())
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
pub struct Code(c_uint);

impl Code {
    /// Returns whether the code is `known`.
    pub fn is(self, known: Known) -> bool {
        self.0 == known as c_uint
    }

    /// Returns whether the call may succeed if no other process registers at the same time. This
    /// includes unknown codes, since drivers return different ones in this case.
    pub fn may_pass(self) -> bool {
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
        "a part of the range is registered already, perhaps by another library: use that registration, or end it first",
    ),
    (
        &[Known::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED],
        "the driver has no such registration: another library has ended it",
    ),
    (
        &[Known::CUDA_ERROR_INVALID_VALUE],
        "a part of the range is not mapped, or it is mapped read-only and write access was requested (request read access only)",
    ),
    (
        &[Known::CUDA_ERROR_OUT_OF_MEMORY],
        "the driver has no room for the registration: end other registrations, or free memory of the host or the GPU",
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
        "the driver is not initialised in this process; a child of a process that has used CUDA cannot initialise it",
    ),
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

    #[test]
    fn every_code_has_advice_also_an_unknown_one() {
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
