//! A library that is loaded at run time.

#![allow(unsafe_code, reason = "loads a library and looks up symbols")]

use std::ffi::{CStr, c_void};

/// A loaded library, which stays loaded until the process ends.
pub(super) struct Library(*mut c_void);

impl Library {
    /// Loads a library by its name. Its constructors run, so it is loaded in a child process.
    pub(super) fn open(name: &CStr) -> Option<Library> {
        // SAFETY: loads a library by its name; its constructors run, which is why this is done in a
        // child.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(Library(handle))
    }

    /// Returns the address of a symbol.
    pub(super) fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is never closed.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}
