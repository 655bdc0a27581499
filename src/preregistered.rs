//! Registrations that were made before `main` (`hostbuf run --register`). A preloaded object with
//! its own copy of this library made them, so its functions are found by name. See
//! include/hostbuf_registered.h.

#![allow(unsafe_code, reason = "calls functions that are found by their names")]

use std::ffi::{CStr, c_int};

use hostbuf_register::Span;

type Act = unsafe extern "C" fn(usize, usize) -> c_int;

/// Calls the function `name` of the object, if it is loaded. Returns whether it succeeded.
fn call(name: &CStr, span: Span) -> bool {
    // SAFETY: looks a name up in the loaded objects.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return true;
    }
    // SAFETY: both functions of these names have this type, by include/hostbuf_registered.h; they
    // accept any range.
    unsafe { std::mem::transmute::<*mut libc::c_void, Act>(found)(span.start(), span.len()) == 0 }
}

/// Returns whether this process has mapped the job's GPU sections before `main`.
#[cfg(feature = "cuda")]
pub(super) fn maps_gpu_sections() -> bool {
    // SAFETY: looks a name up in the loaded objects.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"hostbuf_maps_gpu_sections".as_ptr()) };
    // SAFETY: the function of this name has this type, by include/hostbuf_registered.h.
    !found.is_null()
        && unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> c_int>(found)() == 1 }
}

/// Ends the registrations of `span`, so that no device writes to it, and none pins it. Returns
/// whether it succeeded.
pub(super) fn deregister(span: Span) -> bool {
    call(c"hostbuf_registered_end", span)
}

/// Registers `span` again, for reading only. Returns whether it succeeded.
pub(super) fn register_again(span: Span) -> bool {
    call(c"hostbuf_registered_again", span)
}
