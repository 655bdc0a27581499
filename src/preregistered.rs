//! Registrations that were made before `main` (`hostbuf run --register`): by an object in this
//! process that has its own copy of this library, and so is found by name. See
//! include/hostbuf_registered.h.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use hostbuf_register::Span;

type Act = unsafe extern "C" fn(usize, usize) -> c_int;

/// Calls the object's function, if there is one; whether all went well.
fn call(name: &CStr, span: Span) -> bool {
    // SAFETY: looks for a name in what is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return true;
    }
    // SAFETY: both functions of these names have this type, by include/hostbuf_registered.h; they
    // take any range.
    unsafe { std::mem::transmute::<*mut libc::c_void, Act>(found)(span.start(), span.len()) == 0 }
}

/// Ends what was registered of `span`, so that nothing writes there by a device, and nothing pins
/// it.
pub(super) fn end(span: Span) -> bool {
    call(c"hostbuf_registered_end", span)
}

/// Registers it again, for reading alone.
pub(super) fn again(span: Span) -> bool {
    call(c"hostbuf_registered_again", span)
}
