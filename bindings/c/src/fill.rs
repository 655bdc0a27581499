//! Filling a buffer, once a host, by a function of the caller's.

use std::ffi::c_void;
use std::ptr::null_mut;

use library::{Arena, ffi};

use crate::arena::hostbuf_arena;
use crate::buffer::{buffer, hostbuf_buffer};
use crate::group::{group, hostbuf_collective};
use crate::status::{Trouble, call, hostbuf_status, place, together};

/// Fills a buffer: answers a pointer into it, the object that all others will find, or null when
/// that failed. It must neither throw nor jump out.
pub type hostbuf_filler =
    Option<unsafe extern "C" fn(arena: *mut hostbuf_arena, argument: *mut c_void) -> *mut c_void>;

type Filler = unsafe extern "C" fn(*mut hostbuf_arena, *mut c_void) -> *mut c_void;

/// Runs a caller's function over an arena.
fn run(
    arena: &Arena<'_>,
    own: &hostbuf_buffer,
    filler: Filler,
    argument: *mut c_void,
) -> library::Result<*mut u8> {
    // SAFETY: the caller's function with its argument; it only passes the arena on to the functions
    // of this library.
    own.arena.fill(arena, |arena| unsafe { filler(arena, argument) }.cast())
}

/// Fills the buffer by `filler(arena, argument)` in one rank of this host, whichever comes first;
/// the others wait. All get the object that it answered, in `root`, which may be null. When the
/// filler's process dies, one of those who wait takes over, with a zeroed arena: so the function
/// may run in several processes one after another, never in two at a time.
// Safety: `buffer` and `root` are null or valid; the function does what it should with the
// argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_initialize(
    buffer: *mut hostbuf_buffer,
    filler: hostbuf_filler,
    argument: *mut c_void,
    root: *mut *mut c_void,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        unsafe { answer(null_mut(), root) };
        // SAFETY: as above.
        let own = unsafe { self::buffer(buffer) }?;
        let filler = filler.ok_or_else(|| crate::status::argument("filler is null"))?;
        let found = ffi::initialize(&own.buffer, |arena| run(arena, own, filler, argument))?;
        // SAFETY: as above.
        unsafe { answer(found, root) };
        Ok(())
    })
}

/// Fills the buffer in rank 0 of `group` and sends it to the other hosts: one build for the whole
/// job. Collective. A buffer is filled once: `HOSTBUF_FILL` where it is already.
// Safety: As `hostbuf_initialize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_initialize_job(
    buffer: *mut hostbuf_buffer,
    group: *const hostbuf_collective,
    filler: hostbuf_filler,
    argument: *mut c_void,
    root: *mut *mut c_void,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        unsafe { answer(null_mut(), root) };
        // SAFETY: as above.
        let (own, group) = unsafe { (self::buffer(buffer), self::group(group)?) };
        let ready =
            own.and_then(|own| Ok((own, filler.ok_or_else(|| crate::status::argument("filler is null"))?)));
        let (own, filler) = together(&*group, ready)?;
        let found = ffi::initialize_job(&own.buffer, &*group, |arena| run(arena, own, filler, argument))?;
        // SAFETY: as above.
        unsafe { answer(found, root) };
        Ok(())
    })
}

/// # Safety
/// `to` is null or can be written.
unsafe fn answer(root: *mut u8, to: *mut *mut c_void) {
    // SAFETY: by the contract of this.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = root.cast();
    }
}

/// The object that filled the buffer; `HOSTBUF_NOTHING` while it is not filled.
// Safety: `buffer` and `root` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_root(
    buffer: *const hostbuf_buffer,
    root: *mut *mut c_void,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let (own, to) = unsafe { (self::buffer(buffer)?, place(root, "root")?) };
        *to = null_mut();
        match ffi::root(&own.buffer)? {
            Some(root) => *to = root.cast(),
            None => return Err(Trouble::Nothing(format!("buffer \"{}\" is not filled", own.buffer.name()))),
        }
        Ok(())
    })
}
