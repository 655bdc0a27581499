//! The functions of libcufile.

#![allow(unsafe_code, reason = "a symbol of the library is given the type of its function")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::cufile_error::{CuFileError, CuFileResult};

/// The description of a file (`CUfileDescr_t`) by its descriptor.
#[repr(C)]
pub(super) struct FileDescription {
    pub(super) kind: c_uint,
    pub(super) descriptor: DescriptorOrPointer,
    /// The functions of a file system in user space, null for others.
    pub(super) operations: *const c_void,
}

/// The union of a descriptor and a handle of Windows.
#[repr(C)]
pub(super) union DescriptorOrPointer {
    pub(super) descriptor: c_int,
    pub(super) pointer: *mut c_void,
}

/// The kind of a descriptor of Linux (`CU_FILE_HANDLE_TYPE_OPAQUE_FD`).
pub(super) const LINUX_DESCRIPTOR: c_uint = 1;

/// The functions of the loaded library.
pub(super) struct CuFileFunctions {
    pub(super) driver_open: unsafe extern "C" fn() -> CuFileResult,
    pub(super) driver_close: unsafe extern "C" fn() -> CuFileResult,
    pub(super) handle_register: unsafe extern "C" fn(*mut *mut c_void, *mut FileDescription) -> CuFileResult,
    pub(super) handle_deregister: unsafe extern "C" fn(*mut c_void),
    pub(super) buffer_register: unsafe extern "C" fn(*const c_void, usize, c_int) -> CuFileResult,
    pub(super) buffer_deregister: unsafe extern "C" fn(*const c_void) -> CuFileResult,
    /// The handle, the base of the memory, the length, the offset in the file, and the offset in
    /// the memory.
    pub(super) read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, i64, i64) -> isize,
    pub(super) write: unsafe extern "C" fn(*mut c_void, *const c_void, usize, i64, i64) -> isize,
}

impl CuFileFunctions {
    /// Loads the library. It stays loaded until the process ends.
    ///
    /// # Errors
    /// [`CuFileError::NoLibrary`], or [`CuFileError::MissingFunction`].
    pub(super) fn load() -> Result<&'static CuFileFunctions, CuFileError> {
        static FOUND: OnceLock<CuFileFunctions> = OnceLock::new();
        if let Some(functions) = FOUND.get() {
            return Ok(functions);
        }
        let library = open_library()?;
        let functions = CuFileFunctions::find(library)?;
        Ok(FOUND.get_or_init(|| functions))
    }

    fn find(library: *mut c_void) -> Result<CuFileFunctions, CuFileError> {
        // SAFETY: the library's functions of these names have these types.
        unsafe {
            Ok(CuFileFunctions {
                driver_open: function(library, c"cuFileDriverOpen")?,
                // Newer libraries have a second version.
                driver_close: function(library, c"cuFileDriverClose_v2")
                    .or_else(|_| function(library, c"cuFileDriverClose"))?,
                handle_register: function(library, c"cuFileHandleRegister")?,
                handle_deregister: function(library, c"cuFileHandleDeregister")?,
                buffer_register: function(library, c"cuFileBufRegister")?,
                buffer_deregister: function(library, c"cuFileBufDeregister")?,
                read: function(library, c"cuFileRead")?,
                write: function(library, c"cuFileWrite")?,
            })
        }
    }
}

fn open_library() -> Result<*mut c_void, CuFileError> {
    for name in [c"libcufile.so.0", c"libcufile.so"] {
        // SAFETY: loads libcufile, whose constructors have no preconditions.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !library.is_null() {
            return Ok(library);
        }
    }
    Err(CuFileError::no_library())
}

/// Finds a function.
///
/// # Errors
/// [`CuFileError::MissingFunction`].
///
/// # Safety
/// `F` is the type of the function: a pointer.
unsafe fn function<F: Copy>(library: *mut c_void, name: &'static CStr) -> Result<F, CuFileError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a pointer") };
    // SAFETY: the library is loaded, and the name is a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(CuFileError::missing(name));
    }
    // SAFETY: the caller names the type.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}
