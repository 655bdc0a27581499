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

    /// Returns the reason why the dynamic linker cannot load the library that was tried last in
    /// this thread, unless there is no file of this name.
    pub(super) fn unloadable(name: &CStr) -> Option<String> {
        // SAFETY: returns a text that is valid until the next call, or null.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return None;
        }
        // SAFETY: the text is terminated by NUL.
        let why = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        let is_absent = why.contains(&*name.to_string_lossy()) && why.contains("No such file or directory");
        (!is_absent).then_some(why)
    }

    /// Returns the address of a symbol.
    pub(super) fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is never closed.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}
