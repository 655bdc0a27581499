//! Filling a buffer, once a host, by a function of the caller's.

use std::alloc::Layout;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use library::internal::foreign;
use library::{Arena, Error};

use crate::buffer::{buffer, hostbuf_buffer};
use crate::group::{group, hostbuf_collective};
use crate::status::{Trouble, argument, call, given, hostbuf_status, place, text, together};

/// Gives out the buffer's memory while it is being filled.
pub struct hostbuf_arena {
    arena: Arena<'static>,
    start: usize,
    size: usize,
    /// Why filling cannot go on, for when the function says that it failed.
    failed: Mutex<Option<Error>>,
}

impl hostbuf_arena {
    fn failed(&self) -> MutexGuard<'_, Option<Error>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills a buffer: answers a pointer into it, the object that all others will find, or null when that failed. It must neither
/// throw nor jump out.
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
    // SAFETY: the caller's function has it for the time of the call, and the buffer lives longer.
    let arena = unsafe { std::mem::transmute::<Arena<'_>, Arena<'static>>(*arena) };
    let (start, size) = (own.start() as usize, own.buffer.len());
    let mut given = hostbuf_arena { arena, start, size, failed: Mutex::new(None) };
    // SAFETY: the caller's function with its argument.
    let root: *mut u8 = unsafe { filler(&raw mut given, argument) }.cast();
    let failed = given.failed().take();
    match failed {
        Some(error) if root.is_null() => Err(error),
        _ => Ok(root),
    }
}

/// Fills the buffer by `filler(arena, argument)` in one rank of this host, whichever comes first; the others wait. All get the
/// object that it answered, in `root`, which may be null. When the filler's process dies, one of those who wait takes over,
/// with a zeroed arena: so the function may run in several processes one after another, never in two at a time.
// Safety: `buffer` and `root` are null or valid; the function does what it should with the argument.
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
        let found = foreign::initialize(&own.buffer, |arena| run(arena, own, filler, argument))?;
        // SAFETY: as above.
        unsafe { answer(found, root) };
        Ok(())
    })
}

/// Fills the buffer in rank 0 of `group` and sends it to the other hosts: one build for the whole job. Collective.
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
        let found = foreign::initialize_job(&own.buffer, &*group, |arena| run(arena, own, filler, argument))?;
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
        match foreign::root(&own.buffer)? {
            Some(root) => *to = root.cast(),
            None => return Err(Trouble::Nothing(format!("buffer \"{}\" is not filled", own.buffer.name()))),
        }
        Ok(())
    })
}

/// Memory of the buffer: `size` bytes, zero, at a multiple of `alignment`, a power of two. Null when there is no room or filling
/// has ended: `hostbuf_message` says which. Threads of the process that fills may call it at the same time.
// Safety: `arena` is null, or what the filling function was given, before it returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_take(
    arena: *mut hostbuf_arena,
    size: usize,
    alignment: usize,
) -> *mut c_void {
    let mut at = null_mut();
    call(|| {
        // SAFETY: by the contract of this.
        let arena = unsafe { given(arena, "arena") }?;
        let layout =
            Layout::from_size_align(size, alignment).map_err(|_| match alignment.is_power_of_two() {
                true => {
                    argument(format!("{size} bytes at a multiple of {alignment} are more than there can be"))
                }
                false => {
                    argument(format!("{size} bytes at a multiple of {alignment}, which is no power of two"))
                }
            })?;
        match arena.arena.take(layout) {
            Ok(memory) => at = memory.as_ptr().cast(),
            Err(error) => {
                let again = Error::Full { asked: size as u64, left: arena.arena.left().unwrap_or(0) };
                *arena.failed() = matches!(error, Error::Full { .. }).then_some(again);
                return Err(error.into());
            }
        }
        Ok(())
    });
    at
}

/// Says why filling fails, in words for people: when the function then answers null, all ranks hear them. (That the arena is full needs
/// not be said.)
// Safety: As `hostbuf_arena_take`; `why` is null or text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_fail(arena: *mut hostbuf_arena, why: *const c_char) {
    call(|| {
        // SAFETY: by the contract of this.
        let (arena, why) = unsafe { (given(arena, "arena")?, text(why, "why")?) };
        *arena.failed() = Some(Error::Fill { why: why.to_owned() });
        Ok(())
    });
}

/// Bytes that the arena has left; 0 for a null one.
// Safety: As `hostbuf_arena_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_left(arena: *const hostbuf_arena) -> u64 {
    let mut left = 0;
    call(|| {
        // SAFETY: by the contract of this.
        left = unsafe { given(arena, "arena") }?.arena.left()?;
        Ok(())
    });
    left
}

/// Whether `bytes` bytes from `pointer` lie in the buffer that is being filled.
// Safety: As `hostbuf_arena_take`; `pointer` may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_contains(
    arena: *const hostbuf_arena,
    pointer: *const c_void,
    bytes: usize,
) -> bool {
    // SAFETY: by the contract of this.
    let Some(arena) = (unsafe { arena.as_ref() }) else { return false };
    let at = (pointer as usize).checked_sub(arena.start);
    at.is_some_and(|at| at <= arena.size && bytes <= arena.size - at)
}
