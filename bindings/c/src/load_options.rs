//! The options of a load.

#![allow(unsafe_code, reason = "reads structures and texts of the caller")]

use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null;

use ::hostbuf_load::LoadOptions;
use library::sized_struct::SizedInput;

use crate::pointers::{c_string, read};
use crate::pool::optional_text;
use crate::status::{CallResult, argument};

/// The options of a load. All have defaults, and all ranks pass the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_load_options {
    /// The size of this structure: initialize it with `HOSTBUF_LOAD_OPTIONS_INIT`.
    pub struct_size: usize,
    /// The name of the backend, as in `hostbuf_file_options`. Null means `"auto"`.
    pub backend: *const c_char,
    /// The number of bytes that a rank claims at a time, a power of two of at least 4096; 0 for 16
    /// MiB.
    pub window_bytes: u64,
    /// The largest number of bytes of one read, a multiple of 4096; 0 for 4 MiB.
    pub piece_bytes: u64,
    /// The number of threads of each rank that read, at most 1024; 0 for as many as the rank has
    /// cores, if the ranks of its host share them equally, and at most 16.
    pub workers: usize,
}

sized_struct!(hostbuf_load_options, "HOSTBUF_LOAD_OPTIONS_INIT", last: workers: usize);

// SAFETY: numbers and a pointer.
unsafe impl SizedInput for hostbuf_load_options {
    const DEFAULT: hostbuf_load_options = hostbuf_load_options {
        struct_size: size_of::<hostbuf_load_options>(),
        backend: null(),
        window_bytes: 0,
        piece_bytes: 0,
        workers: 0,
    };
}

/// Converts the options of the caller. Null is the defaults.
///
/// # Safety
/// `options` is null or valid.
pub unsafe fn load_options(options: *const hostbuf_load_options) -> CallResult<LoadOptions> {
    let mut converted = LoadOptions::new();
    if options.is_null() {
        return Ok(converted);
    }
    // SAFETY: by the contract of this function.
    let given = unsafe { read(options, "options") }?;
    // SAFETY: by the contract of this function.
    if let Some(backend) = unsafe { optional_text(given.backend, "options.backend") }? {
        converted.backend = backend.parse().map_err(argument)?;
    }
    let or_default = |given: u64, default| if given == 0 { default } else { given };
    converted.window_bytes = or_default(given.window_bytes, converted.window_bytes);
    converted.piece_bytes = or_default(given.piece_bytes, converted.piece_bytes);
    Ok(converted.workers(given.workers))
}

/// Converts the paths of the caller.
///
/// # Safety
/// `paths` is null, or points to `count` pointers, each of which is null or a C string.
pub unsafe fn load_paths(paths: *const *const c_char, count: usize) -> CallResult<Vec<PathBuf>> {
    if paths.is_null() {
        return Err(argument("paths is null"));
    }
    if count == 0 {
        return Err(argument("count is 0: name at least one file or folder"));
    }
    let path = |at: usize| {
        // SAFETY: by the contract of this function.
        let path = unsafe { c_string(*paths.add(at), &format!("paths[{at}]")) }?;
        Ok(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
    };
    (0..count).map(path).collect()
}
