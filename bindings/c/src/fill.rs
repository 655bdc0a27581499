//! Filling a buffer, once a host, by a function of the caller's.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use library::ffi::{self, ScopedArena};
use library::{Arena, Error, HostBuffer};

use crate::buffer::{buffer, hostbuf_buffer};
use crate::group::{group, hostbuf_collective};
use crate::status::{Trouble, argument, call, given, hostbuf_status, place, together};

/// Gives out the buffer's memory while it is being filled. It stays where it is for as long as the `hostbuf_buffer`, and gives nothing
/// when the function that fills has returned.
pub struct hostbuf_arena {
    arena: ScopedArena,
    start: usize,
    size: usize,
    failed: Mutex<Failed>,
}

/// Why filling cannot go on, for when the function says that it failed.
#[derive(Default)]
struct Failed {
    /// The program's own words, which come first.
    said: Option<Error>,
    /// The last that was asked for, if it could not be had.
    take: Option<Error>,
}

/// Where the root lies is written behind all that was taken: 8 bytes at a multiple of 8.
const ROOT: u64 = 16;

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl hostbuf_arena {
    pub(crate) fn of(buffer: &HostBuffer) -> hostbuf_arena {
        let start = buffer.as_ptr().as_ptr() as usize;
        hostbuf_arena { arena: ScopedArena::default(), start, size: buffer.len(), failed: Mutex::default() }
    }

    fn take(&self, size: usize, alignment: usize) -> library::Result<*mut u8> {
        let wanted = format_args!("{size} bytes at a multiple of {alignment}");
        // For no bytes a place all the same: it may be the root.
        let layout = Layout::from_size_align(size.max(1), alignment).map_err(|_| Error::Invalid {
            what: match alignment.is_power_of_two() {
                true => format!("{wanted} are more than there can be"),
                false => format!("{wanted}, which is no power of two"),
            },
        })?;
        self.arena.with(|arena| Ok(arena.take(layout)?.as_ptr()))
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
    *held(&own.arena.failed) = Failed::default();
    // SAFETY: the caller's function with its argument; what it is given is only read by those who have the pointer.
    let call = || unsafe { filler((&raw const *own.arena).cast_mut(), argument) };
    let root: *mut u8 = own.arena.arena.during(arena, call).cast();
    let failed = std::mem::take(&mut *held(&own.arena.failed));
    match failed.said.or(failed.take) {
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
        let found = ffi::initialize(&own.buffer, |arena| run(arena, own, filler, argument))?;
        // SAFETY: as above.
        unsafe { answer(found, root) };
        Ok(())
    })
}

/// Fills the buffer in rank 0 of `group` and sends it to the other hosts: one build for the whole job. Collective. A buffer is filled once:
/// `HOSTBUF_FILL` where it is already.
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

/// Memory of the buffer: `size` bytes, zero, at a multiple of `alignment`, a power of two. Null when there is no room or filling
/// has ended: `hostbuf_message` says which. Threads of the process that fills may call it at the same time.
// Safety: `arena` is null, or what a function that fills was given by a buffer that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_take(
    arena: *mut hostbuf_arena,
    size: usize,
    alignment: usize,
) -> *mut c_void {
    let mut at = null_mut();
    call(|| {
        // SAFETY: by the contract of this.
        let arena = unsafe { given(arena.cast_const(), "arena") }?;
        let taken = arena.take(size, alignment);
        // It goes on asking, perhaps for less.
        held(&arena.failed).take = None;
        at = taken.inspect_err(|error| held(&arena.failed).take = Some(again(error)))?;
        Ok(())
    });
    at.cast()
}

/// The same once more.
fn again(error: &Error) -> Error {
    match error {
        Error::Full { asked, left } => Error::Full { asked: *asked, left: *left },
        Error::Invalid { what } => Error::Invalid { what: what.clone() },
        Error::Fill { why } => Error::Fill { why: why.clone() },
        Error::Corrupt { word, found } => Error::Corrupt { word, found: *found },
        other => Error::Fill { why: other.to_string() },
    }
}

/// Says why filling fails, in words for people: when the function then answers null, all ranks hear them. (What `hostbuf_arena_take`
/// could not give need not be said.)
// Safety: As `hostbuf_arena_take`; `why` is null or text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_fail(arena: *mut hostbuf_arena, why: *const c_char) {
    call(|| {
        // SAFETY: by the contract of this.
        let arena = unsafe { given(arena.cast_const(), "arena") }?;
        if why.is_null() {
            return Err(argument("why is null"));
        }
        // Whatever it is written in: these words are all that people will have.
        // SAFETY: by the contract of this.
        let why = unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned();
        held(&arena.failed).said = Some(Error::Fill { why });
        Ok(())
    });
}

/// Bytes that the arena has left, but for what the root takes; 0 for a null one, and when filling has ended.
// Safety: As `hostbuf_arena_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_left(arena: *const hostbuf_arena) -> u64 {
    let mut left = 0;
    call(|| {
        // SAFETY: by the contract of this.
        let arena = unsafe { given(arena, "arena") }?;
        left = arena.arena.with(|arena| Ok(arena.left()?.saturating_sub(ROOT)))?;
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
