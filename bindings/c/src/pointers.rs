//! Checked access to the caller's memory.
//!
//! The functions of the interface take handles as `Option<&T>`, results as
//! `Option<&mut MaybeUninit<T>>`, and handles that they release as `Option<Box<T>>`. In C these are
//! pointers, and null is `None`. The functions here check the pointers that have no such type.

#![allow(unsafe_code, reason = "reads and writes memory of the caller")]

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use library::sized_struct::{self, SizedInput, SizedStruct};

use crate::status::{CallResult, argument};

/// Returns the object of a handle, or an error if the handle is null.
pub fn input<'a, T>(handle: Option<&'a T>, name: &str) -> CallResult<&'a T> {
    handle.ok_or_else(|| argument(format!("{name} is null")))
}

/// Writes `initial` to the place of a result and returns the place, or an error if it is null.
pub fn output<'a, T>(to: Option<&'a mut MaybeUninit<T>>, name: &str, initial: T) -> CallResult<&'a mut T> {
    to.map(|to| to.write(initial)).ok_or_else(|| argument(format!("{name} is null")))
}

/// Returns a C string of the caller as text.
///
/// # Safety
/// `pointer` is null, or a C string that is valid as long as the result is used.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> CallResult<&'a str> {
    // SAFETY: by the contract of this function.
    let text = unsafe { c_string(pointer, name) }?;
    text.to_str().map_err(|_| argument(format!("{name} is not UTF-8: {}", text.to_string_lossy())))
}

/// Returns a C string of the caller.
///
/// # Safety
/// As [`text`].
pub unsafe fn c_string<'a>(pointer: *const c_char, name: &str) -> CallResult<&'a CStr> {
    match pointer.is_null() {
        true => Err(argument(format!("{name} is null"))),
        // SAFETY: by the contract of this function.
        false => Ok(unsafe { CStr::from_ptr(pointer) }),
    }
}

/// Writes a text with its NUL to the caller's memory. A text that does not fit is truncated.
///
/// # Safety
/// `to` is null or has room for `size` bytes.
pub unsafe fn write_text(text: &CStr, to: *mut c_char, size: usize, name: &str) -> CallResult<()> {
    let room = size.checked_sub(1).ok_or_else(|| argument("size is 0"))?;
    if to.is_null() {
        return Err(argument(format!("{name} is null")));
    }
    let length = text.count_bytes().min(room);
    // SAFETY: both have `length` bytes, and the caller's memory has one more.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to, length);
        to.add(length).write(0);
    }
    Ok(())
}

/// Reads a struct of the caller, with defaults for the fields that it lacks.
///
/// # Safety
/// `at` is null, or points to a struct whose `struct_size` is initialized and correct.
pub unsafe fn read<T: SizedInput>(at: *const T, name: &str) -> CallResult<T> {
    // SAFETY: by the contract of this function.
    unsafe { sized_struct::read(at, name) }.map_err(argument)
}

/// Checks a struct of the caller that a function fills.
///
/// # Safety
/// `at` is null, or points to a writable struct whose `struct_size` is initialized and correct.
pub unsafe fn struct_output<'a, T: SizedStruct>(
    at: *mut T,
    name: &str,
) -> CallResult<sized_struct::Output<'a, T>> {
    // SAFETY: by the contract of this function.
    unsafe { sized_struct::Output::new(at, name) }.map_err(argument)
}

/// Implements [`SizedStruct`] for a type of this crate, and asserts its contract.
macro_rules! sized_struct {
    ($type:ident, $initializer:literal, last: $last:ident: $field:ty $(, min: $min:expr)?) => {
        const _: () = assert!(
            std::mem::offset_of!($type, struct_size) == 0
                && std::mem::offset_of!($type, $last) + size_of::<$field>() == size_of::<$type>()
        );
        // SAFETY: asserted above; the type is `repr(C)` for cbindgen.
        unsafe impl library::sized_struct::SizedStruct for $type {
            const NAME: &'static str = stringify!($type);
            const INITIALIZER: &'static str = $initializer;
            $(const MIN: usize = $min;)?
        }
    };
}
