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

/// Loads libcuda, unless it is loaded.
///
/// # Errors
/// [`CudaError::NoDriver`], or [`CudaError::Unloadable`] for a file that is no library, or that
/// lacks another library.
fn load_library() -> Result<(), CudaError> {
    if LIBRARY.get().is_some() {
        return Ok(());
    }
    let mut reason = None;
    for name in cudarc::get_lib_name_candidates("cuda") {
        let Ok(file) = CString::new(name.as_str()) else { continue };
        // SAFETY: loads libcuda, whose constructors have no preconditions.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if let Some(library) = NonNull::new(library) {
            LIBRARY.set(library.addr().get());
            return Ok(());
        }
        reason = reason.or_else(|| loader_error().filter(|why| !is_absence(why, &name)));
    }
    let host = process::host_name();
    Err(match reason {
        Some(why) => CudaError::Unloadable { why, host },
        None => CudaError::NoDriver { host },
    })
}

/// Returns the reason of the dynamic linker for the last failure in this thread.
fn loader_error() -> Option<String> {
    // SAFETY: returns a text that is valid until the next call, or null.
    let text = NonNull::new(unsafe { libc::dlerror() })?;
    // SAFETY: the text is terminated by NUL.
    Some(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

/// Returns whether the reason of the dynamic linker means that there is no file of this name. A
/// library that lacks another one has that name in its reason.
fn is_absence(why: &str, name: &str) -> bool {
    why.contains(name) && why.contains("No such file or directory")
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
    /// [`CudaError::NoDriver`], [`CudaError::Unloadable`], or [`CudaError::MissingFunction`] for a
    /// driver that is too old to register host memory.
    pub fn load() -> Result<Driver, CudaError> {
        static FOUND: SetOnce<Functions> = SetOnce::new();
        let functions = match FOUND.get() {
            Some(functions) => functions,
            None => {
                load_library()?;
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
