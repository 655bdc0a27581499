//! The loaded driver.

#![allow(unsafe_code, reason = "the driver is loaded at run time and called by foreign functions")]

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::fmt;
use std::ptr::NonNull;

use hostbuf_os::process;
use hostbuf_os::set_once::SetOnce;

use crate::cuda_code::CudaCode;
use crate::cuda_error::CudaError;
use crate::functions::Functions;

/// The CUDA driver of this process.
///
/// libcuda is loaded by the first call of [`load`](Driver::load) or [`find`](Driver::find), and
/// never before. It stays loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Driver {
    functions: &'static Functions,
}

/// The library, by its handle of the loader. It is never unloaded.
static LIBRARY: SetOnce<usize> = SetOnce::new();

/// Loads libcuda, unless it is loaded. Returns false if there is none.
fn load_library() -> bool {
    if LIBRARY.get().is_some() {
        return true;
    }
    let names = cudarc::get_lib_name_candidates("cuda");
    let found = names.into_iter().filter_map(|name| CString::new(name).ok()).find_map(|name| {
        // SAFETY: loads libcuda, whose constructors have no preconditions.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        NonNull::new(library)
    });
    found.inspect(|library| _ = LIBRARY.set(library.addr().get())).is_some()
}

/// Finds a symbol of the loaded library.
fn library_symbol(name: &'static str) -> Option<*const c_void> {
    let (library, name) = (LIBRARY.get()?, CString::new(name).ok()?);
    // SAFETY: the library stays loaded, and the symbol is only taken for a pointer.
    let found = unsafe { libc::dlsym(*library as *mut c_void, name.as_ptr()) };
    NonNull::new(found).map(|found| found.as_ptr().cast_const())
}

impl Driver {
    /// Loads the driver, without initialising it: [`version`](Driver::version) works, everything
    /// else needs [`find`](Driver::find).
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], or [`CudaError::MissingFunction`] for a driver that is too old to
    /// register host memory.
    pub fn load() -> Result<Driver, CudaError> {
        static FOUND: SetOnce<Functions> = SetOnce::new();
        let functions = match FOUND.get() {
            Some(functions) => functions,
            None => {
                if !load_library() {
                    return Err(CudaError::NoDriver { host: process::host_name() });
                }
                let functions = Functions::find(library_symbol)?;
                FOUND.set(functions)
            }
        };
        Ok(Driver { functions })
    }

    /// Loads and initialises the driver, and makes no context. Further calls do nothing more.
    ///
    /// # Errors
    /// Those of [`load`](Driver::load), [`CudaError::NoGpu`] if the process sees none, and the
    /// driver's error, for example in a forked child of a process that has used CUDA.
    #[doc(alias = "cuInit")]
    pub fn find() -> Result<Driver, CudaError> {
        let driver = Driver::load()?;
        driver.initialize()?;
        Ok(driver)
    }

    /// Makes a driver of the functions that a test provides.
    #[cfg(test)]
    pub(crate) fn with_functions(functions: &'static Functions) -> Driver {
        Driver { functions }
    }

    /// Initialises the driver, and checks that it has a GPU.
    pub(crate) fn initialize(self) -> Result<(), CudaError> {
        // SAFETY: cuInit may be called several times.
        self.checked(unsafe { (self.functions.basic.initialize)(0) }, "cuInit")?;
        match self.gpu_count()? {
            0 => Err(CudaError::NoGpu { request: "GPU".into(), visible: 0, host: process::host_name() }),
            _ => Ok(()),
        }
    }

    /// Returns the newest version of CUDA that the driver supports: (12, 8) for CUDA 12.8.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuDriverGetVersion")]
    pub fn version(self) -> Result<(u32, u32), CudaError> {
        let mut version = 0;
        // SAFETY: `version` is a local variable.
        let answer = unsafe { (self.functions.basic.version)(&raw mut version) };
        self.checked(answer, "cuDriverGetVersion")?;
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Returns the number of GPUs that this process sees (`CUDA_VISIBLE_DEVICES`).
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuDeviceGetCount")]
    pub fn gpu_count(self) -> Result<u32, CudaError> {
        let mut count = 0;
        // SAFETY: `count` is a local variable.
        let answer = unsafe { (self.functions.basic.count)(&raw mut count) };
        self.checked(answer, "cuDeviceGetCount")?;
        Ok(count.unsigned_abs())
    }

    /// Returns the functions of the driver.
    pub(crate) fn functions(self) -> &'static Functions {
        self.functions
    }

    /// Returns a number that another driver, such as that of another test, does not have.
    pub(crate) fn address(self) -> usize {
        std::ptr::from_ref(self.functions).addr()
    }

    /// Converts a returned code into a result; `doing` is the function with its operands.
    pub(crate) fn checked(self, answer: c_uint, doing: impl fmt::Display) -> Result<(), CudaError> {
        match CudaCode::of(answer) {
            None => Ok(()),
            Some(code) => Err(self.error(code, doing)),
        }
    }

    /// Makes the error of a function that returned `code`.
    pub(crate) fn error(self, code: CudaCode, doing: impl fmt::Display) -> CudaError {
        let doing = doing.to_string();
        let advice = code.advice(&doing);
        CudaError::Call { doing, code, name: self.name_of(code), advice, host: process::host_name() }
    }

    fn name_of(self, code: CudaCode) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver sets the pointer to a static string of its own.
        let found = unsafe { (self.functions.basic.error_name)(code.number(), &raw mut text) };
        if CudaCode::of(found).is_some() || text.is_null() {
            return "an error without a name".into();
        }
        // SAFETY: a static, NUL-terminated string of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
