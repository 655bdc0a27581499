//! Loading files of tensors into a buffer.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use ::hostbuf_load::Tensors;
use library::BufferOptions;

use crate::buffer::{buffer_options, give, hostbuf_buffer, hostbuf_options};
use crate::group::{group, hostbuf_collective};
use crate::load_error::load_error;
use crate::load_options::{hostbuf_load_options, load_options, load_paths};
use crate::pointers::{input, output};
use crate::status::{CallError, CallResult, agree, argument, call, hostbuf_status};
use crate::tensors::hostbuf_tensors;

/// Loads files of tensors into an empty buffer, by all ranks of `group`: safetensors, `.npy` and
/// Arrow IPC, and any other file as one tensor of bytes. A path may also be a folder of such files,
/// or an index `*.safetensors.index.json`. The `count` paths of rank 0 count. Each byte is read by
/// one rank of the job, and all ranks of all hosts then see the tensors at the same addresses. Null
/// `options` are the defaults. Collective.
///
/// A buffer into which loading has failed is empty, but this process keeps the memory that was used
/// there: load again into a new buffer.
///
/// `HOSTBUF_OS`: a file cannot be read. `HOSTBUF_DAMAGED`: a file is damaged or missing in its
/// index. `HOSTBUF_UNSUPPORTED`: hostbuf does not load the contents. `HOSTBUF_CHANGED`: a file has
/// changed. `HOSTBUF_FULL`: the buffer is too small. `HOSTBUF_FILL`: it is filled already. Ranks
/// other than the one that has failed get `HOSTBUF_ELSEWHERE` with its message.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_load(
    buffer: Option<&hostbuf_buffer>,
    group: *const hostbuf_collective,
    paths: *const *const c_char,
    count: usize,
    options: *const hostbuf_load_options,
    to: Option<&mut MaybeUninit<*mut hostbuf_tensors>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut());
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        let ready = || {
            // SAFETY: by the contract of this function.
            let (paths, options) = unsafe { (load_paths(paths, count)?, load_options(options)?) };
            Ok((to?, input(buffer, "buffer")?, paths, options))
        };
        let (to, own, paths, options) = agree(&*group, ready())?;
        let tensors = options.load(&*group, &own.buffer, &paths).map_err(load_error)?;
        hostbuf_tensors::give(tensors, to)
    })
}

/// Converts the options of a buffer whose size the files determine. Null is the defaults.
///
/// # Safety
/// `options` is null or valid.
unsafe fn unsized_options(options: *const hostbuf_options) -> CallResult<BufferOptions> {
    if options.is_null() {
        return Ok(BufferOptions::new(0));
    }
    // SAFETY: by the contract of this function.
    let options = unsafe { buffer_options(options) }?;
    match (options.size, options.sections.len()) {
        (0, 0) => Ok(options),
        (0, count) => Err(argument(format!(
            "the buffer has {count} sections, which files are not loaded into: use hostbuf_allocate and hostbuf_load"
        ))),
        (size, _) => Err(argument(format!(
            "the buffer has a size of {size} bytes, and the files determine it: set 0, or use hostbuf_allocate and hostbuf_load"
        ))),
    }
}

/// Allocates a buffer of the size that the files need, on all hosts of `group`, and loads them as
/// `hostbuf_load` does. Null `buffer_options` are the defaults; `buffer_options.size` is 0. Sets
/// `buffer` and `to`. Collective.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_allocate_and_load(
    group: *const hostbuf_collective,
    buffer_options: *const hostbuf_options,
    paths: *const *const c_char,
    count: usize,
    options: *const hostbuf_load_options,
    buffer: Option<&mut MaybeUninit<*mut hostbuf_buffer>>,
    to: Option<&mut MaybeUninit<*mut hostbuf_tensors>>,
) -> hostbuf_status {
    call(|| {
        let (buffer, to) = (output(buffer, "buffer", null_mut()), output(to, "to", null_mut()));
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        let ready = || {
            // SAFETY: by the contract of this function.
            let (paths, options) = unsafe { (load_paths(paths, count)?, load_options(options)?) };
            // SAFETY: by the contract of this function.
            Ok((buffer?, to?, unsafe { unsized_options(buffer_options) }?, paths, options))
        };
        let (buffer, to, buffer_options, paths, options) = agree(&*group, ready())?;
        let tensors = options.allocate_and_load(&*group, buffer_options, &paths).map_err(load_error)?;
        let loaded = tensors.buffer().clone();
        hostbuf_tensors::give(tensors, to)?;
        give(loaded, buffer);
        Ok(())
    })
}

/// Sets `to` to the tensors of a buffer into which files were loaded, by any program of the job.
/// Local, not collective.
///
/// `HOSTBUF_NOTHING`: no files were loaded into the buffer. `HOSTBUF_DAMAGED`: a process has
/// overwritten the description of the tensors.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_tensors_open(
    buffer: Option<&hostbuf_buffer>,
    to: Option<&mut MaybeUninit<*mut hostbuf_tensors>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let tensors = Tensors::open(&input(buffer, "buffer")?.buffer).map_err(load_error)?;
        hostbuf_tensors::give(tensors, to)
    })
}

/// Sets `to` to the tensors that `hostbuf run --load` has loaded before `main`, and `buffer`,
/// unless it is null, to their buffer. Local, not collective.
///
/// `HOSTBUF_NOTHING`: the launcher has loaded none, or no launcher has started this process.
/// `HOSTBUF_DAMAGED`: a process has overwritten the description of the tensors.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_tensors_loaded(
    buffer: Option<&mut MaybeUninit<*mut hostbuf_buffer>>,
    to: Option<&mut MaybeUninit<*mut hostbuf_tensors>>,
) -> hostbuf_status {
    call(|| {
        let (buffer, to) = (buffer.map(|buffer| buffer.write(null_mut())), output(to, "to", null_mut())?);
        let none = || {
            CallError::Nothing(
                "no files were loaded before main: start the program by hostbuf run --load".into(),
            )
        };
        let tensors = Tensors::loaded().map_err(load_error)?.ok_or_else(none)?;
        let loaded = tensors.buffer().clone();
        hostbuf_tensors::give(tensors, to)?;
        if let Some(buffer) = buffer {
            give(loaded, buffer);
        }
        Ok(())
    })
}
