//! The memory of a buffer while it is filled.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use library::ffi::ScopedArena;
use library::{Arena, Error, HostBuffer};

use crate::status::{argument, call, given};

/// Gives out the buffer's memory while it is being filled. It stays where it is for as long as the
/// `hostbuf_buffer`, and gives nothing when the function that fills has returned.
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

    /// Runs a function that fills, `filler`, while the arena is accessible to it. Returns its root,
    /// or the error that it reported.
    pub(crate) fn fill(
        &self,
        arena: &Arena<'_>,
        filler: impl FnOnce(*mut hostbuf_arena) -> *mut u8,
    ) -> library::Result<*mut u8> {
        *held(&self.failed) = Failed::default();
        let root = self.arena.during(arena, || filler(std::ptr::from_ref(self).cast_mut()));
        let failed = std::mem::take(&mut *held(&self.failed));
        match failed.said.or(failed.take) {
            Some(error) if root.is_null() => Err(error),
            _ => Ok(root),
        }
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

/// Memory of the buffer: `size` bytes, zero, at a multiple of `alignment`, a power of two. Null
/// when there is no room or filling has ended: `hostbuf_message` says which. Threads of the process
/// that fills may call it at the same time.
// Safety: `arena` is null, or what a function that fills was given by a buffer that was not
// released.
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

/// Says why filling fails, in words for people: when the function then answers null, all ranks hear
/// them. (What `hostbuf_arena_take` could not give need not be said.)
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

/// Bytes that the arena has left, but for what the root takes; 0 for a null one, and when filling
/// has ended.
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
