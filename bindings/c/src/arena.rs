//! The memory of a buffer while it is filled.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::alloc::Layout;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

use hostbuf_os::poison::IgnorePoison;
use library::ffi::ScopedArena;
use library::{Arena, Error, HostBuffer};

use crate::pointers::{c_string, input};
use crate::status::call;

/// The allocator of the memory of a buffer while it is being filled. Its address is constant as
/// long as the `hostbuf_buffer` lives. After the fill function has returned, it allocates nothing.
pub struct hostbuf_arena {
    arena: ScopedArena,
    start: usize,
    size: usize,
    failed: Mutex<FillFailure>,
}

/// The reason why filling fails, for the case that the fill function returns null.
#[derive(Default)]
struct FillFailure {
    /// The program's message, which takes precedence.
    message: Option<Error>,
    /// The error of the last allocation, if it failed.
    take: Option<Error>,
}

/// The space that the offset of the root takes after the allocated bytes: 8 bytes at a multiple of
/// 8.
const ROOT: u64 = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

impl hostbuf_arena {
    pub(crate) fn of(buffer: &HostBuffer) -> hostbuf_arena {
        let start = buffer.as_ptr().as_ptr() as usize;
        hostbuf_arena { arena: ScopedArena::default(), start, size: buffer.len(), failed: Mutex::default() }
    }

    /// Runs the fill function, while the arena is accessible to it. Returns its root,
    /// or the error that it reported.
    pub(crate) fn fill(
        &self,
        arena: &Arena<'_>,
        fill: impl FnOnce(*mut hostbuf_arena) -> *mut u8,
    ) -> library::Result<*mut u8> {
        *lock(&self.failed) = FillFailure::default();
        let root = self.arena.during(arena, || fill(std::ptr::from_ref(self).cast_mut()));
        let failed = std::mem::take(&mut *lock(&self.failed));
        match failed.message.or(failed.take) {
            Some(error) if root.is_null() => Err(error),
            _ => Ok(root),
        }
    }

    fn take(&self, size: usize, alignment: usize) -> library::Result<*mut u8> {
        let wanted = format_args!("{size} bytes at a multiple of {alignment}");
        // An allocation of 0 bytes gets an address of its own, since it may be the root.
        let layout = Layout::from_size_align(size.max(1), alignment).map_err(|_| Error::Invalid {
            what: match alignment.is_power_of_two() {
                true => format!("cannot allocate {wanted}: the address space is smaller"),
                false => format!("cannot allocate {wanted}: the alignment is not a power of two"),
            },
        })?;
        self.arena.with(|arena| Ok(arena.take(layout)?.as_ptr()))
    }
}

/// Allocates `size` zero bytes of the buffer at a multiple of `alignment`, a power of two. Returns
/// null if there is no room or filling has ended; `hostbuf_message` gives the reason. The threads
/// of the process that fills the buffer may call it concurrently.
// Safety: `arena` is null, or the argument of a fill function of a buffer that is not released.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_arena_take(
    arena: Option<&hostbuf_arena>,
    size: usize,
    alignment: usize,
) -> *mut c_void {
    let mut at = null_mut();
    call(|| {
        let arena = input(arena, "arena")?;
        let taken = arena.take(size, alignment);
        // The program may have requested less after a failure.
        lock(&arena.failed).take = None;
        at = taken.inspect_err(|error| lock(&arena.failed).take = Some(copy_of(error)))?;
        Ok(())
    });
    at.cast()
}

/// Copies an error of an allocation.
fn copy_of(error: &Error) -> Error {
    match error {
        Error::Full { requested, left } => Error::Full { requested: *requested, left: *left },
        Error::Invalid { what } => Error::Invalid { what: what.clone() },
        Error::Fill { why } => Error::Fill { why: why.clone() },
        Error::Corrupt { word, found } => Error::Corrupt { word, found: *found },
        other => Error::Fill { why: other.to_string() },
    }
}

/// Sets the message for a failure of the fill function. If the function then returns null, the
/// calls of all ranks return this message. A failure of `hostbuf_arena_take` needs no message.
// Safety: as `hostbuf_arena_take`; `why` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_arena_fail(arena: Option<&hostbuf_arena>, why: *const c_char) {
    call(|| {
        let arena = input(arena, "arena")?;
        // SAFETY: by the contract of this function.
        let why = unsafe { c_string(why, "why") }?;
        // Other encodings than UTF-8 are accepted, since users see no other reason.
        let why = why.to_string_lossy().into_owned();
        lock(&arena.failed).message = Some(Error::Fill { why });
        Ok(())
    });
}

/// Returns the number of free bytes of the arena, without the space that the root needs. Returns 0
/// for a null arena and after filling has ended.
// Safety: as `hostbuf_arena_take`.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_arena_left(arena: Option<&hostbuf_arena>) -> u64 {
    let mut left = 0;
    call(|| {
        let arena = input(arena, "arena")?;
        left = arena.arena.with(|arena| Ok(arena.left()?.saturating_sub(ROOT)))?;
        Ok(())
    });
    left
}

/// Returns whether `bytes` bytes from `pointer` lie in the buffer that is being filled.
// Safety: as `hostbuf_arena_take`; `pointer` may have any value.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_arena_contains(
    arena: Option<&hostbuf_arena>,
    pointer: *const c_void,
    bytes: usize,
) -> bool {
    let Some(arena) = arena else { return false };
    let at = (pointer as usize).checked_sub(arena.start);
    at.is_some_and(|at| at <= arena.size && bytes <= arena.size - at)
}
