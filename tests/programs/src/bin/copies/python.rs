//! The copy in the Python module, in an interpreter that the program embeds.

#![allow(unsafe_code, reason = "foreign functions and fork")]

use std::ffi::{CString, c_char, c_int, c_void};

/// An embedded interpreter.
pub struct Python(*mut c_void);

impl Python {
    /// Loads the library of the interpreter and imports the module.
    pub fn start(library: &str) -> Python {
        let name = CString::new(library).expect("a path");
        // The module takes the interpreter's functions from the global scope.
        // SAFETY: the library of an interpreter.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{library} cannot be loaded");
        let python = Python(handle);
        // SAFETY: the type of the function, which is called once and before the others.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(python.symbol("Py_InitializeEx"))(0);
        }
        python.run("import hostbuf");
        python
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name");
        // SAFETY: it is loaded.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    /// Runs statements. A failed one has printed its traceback.
    pub fn run(&self, text: &str) {
        let statements = CString::new(text).expect("a text");
        // SAFETY: the type of the function; the interpreter runs in this thread.
        let failed = unsafe {
            let run = self.symbol("PyRun_SimpleString");
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> c_int>(run)(
                statements.as_ptr(),
            )
        };
        assert_eq!(failed, 0, "{text}");
    }
}
