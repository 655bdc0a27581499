//! Fills a buffer once per host with a function of the caller.

#![allow(unsafe_code, reason = "the functions are called by C, and call functions of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use library::{Arena, ffi};

use crate::arena::hostbuf_arena;
use crate::buffer::hostbuf_buffer;
use crate::group::{group, hostbuf_collective};
use crate::pointers::{input, output};
use crate::status::{CallError, CallResult, agree, argument, call, hostbuf_status};

/// A function that fills a buffer. It returns a pointer into the buffer, the root object that all
/// ranks get, or null if it failed. It must not throw exceptions or call `longjmp`.
pub type hostbuf_fill_function =
    Option<unsafe extern "C" fn(arena: *mut hostbuf_arena, argument: *mut c_void) -> *mut c_void>;

type FillFunction = unsafe extern "C" fn(*mut hostbuf_arena, *mut c_void) -> *mut c_void;

/// Runs a caller's function over an arena.
fn run(
    arena: &Arena<'_>,
    own: &hostbuf_buffer,
    fill: FillFunction,
    argument: *mut c_void,
) -> library::Result<*mut u8> {
    // SAFETY: the caller's function with the caller's argument; it only passes the arena to the
    // functions of this library.
    own.arena.fill(arena, |arena| unsafe { fill(arena, argument) }.cast())
}

/// Fills the buffer by `fill(arena, argument)` in the first rank of this host that calls; the
/// other ranks wait. All ranks get the returned object in `root`, which may be null. If the process
/// that fills dies, a waiting rank calls the function with a zeroed arena. So the function may run
/// in several processes one after another, but never in two at the same time.
// Safety: `buffer` and `root` are null or valid; the function may be called with the argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_initialize(
    buffer: Option<&hostbuf_buffer>,
    fill: hostbuf_fill_function,
    argument: *mut c_void,
    root: Option<&mut MaybeUninit<*mut c_void>>,
) -> hostbuf_status {
    call(|| {
        let root = root.map(|root| root.write(null_mut()));
        let (own, fill) = (input(buffer, "buffer")?, given(fill)?);
        let found = ffi::initialize(&own.buffer, |arena| run(arena, own, fill, argument))?;
        set_root(root, found);
        Ok(())
    })
}

/// Fills the buffer in rank 0 of `group` and sends it to the other hosts, so that the job builds it
/// once. Collective. Returns `HOSTBUF_FILL` if the buffer is filled already.
// Safety: as `hostbuf_initialize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_initialize_job(
    buffer: Option<&hostbuf_buffer>,
    group: *const hostbuf_collective,
    fill: hostbuf_fill_function,
    argument: *mut c_void,
    root: Option<&mut MaybeUninit<*mut c_void>>,
) -> hostbuf_status {
    call(|| {
        let root = root.map(|root| root.write(null_mut()));
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        let ready = input(buffer, "buffer").and_then(|own| Ok((own, given(fill)?)));
        let (own, fill) = agree(&*group, ready)?;
        let found = ffi::initialize_job(&own.buffer, &*group, |arena| run(arena, own, fill, argument))?;
        set_root(root, found);
        Ok(())
    })
}

fn given(fill: hostbuf_fill_function) -> CallResult<FillFunction> {
    fill.ok_or_else(|| argument("fill is null"))
}

/// Writes the root to `to`, unless that is null.
fn set_root(to: Option<&mut *mut c_void>, root: *mut u8) {
    if let Some(to) = to {
        *to = root.cast();
    }
}

/// Writes the root object of the buffer to `root`. Returns `HOSTBUF_NOTHING` while the buffer is
/// not filled.
// Safety: `buffer` and `root` are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_root(
    buffer: Option<&hostbuf_buffer>,
    root: Option<&mut MaybeUninit<*mut c_void>>,
) -> hostbuf_status {
    call(|| {
        let (own, to) = (input(buffer, "buffer")?, output(root, "root", null_mut())?);
        match ffi::root(&own.buffer)? {
            Some(root) => *to = root.cast(),
            None => {
                return Err(CallError::Nothing(format!("buffer \"{}\" is not filled", own.buffer.name())));
            }
        }
        Ok(())
    })
}
