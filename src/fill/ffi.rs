//! Filling from other languages. There, the root of a buffer is an address, and the program knows
//! the type of the object at that address. All languages use the same root, so one may read a
//! buffer that another has filled.

#![allow(unsafe_code, reason = "the type and the lifetime of the root are known to the caller only")]

use std::sync::RwLock;

use hostbuf_os::poison::IgnorePoison;

use crate::error::{Error, Result};
use crate::fill::arena::{Arena, Placed};
use crate::fill::portable::Portable;
use crate::job::Collective;
use crate::segment::handle::HostBuffer;

/// The address of the root object.
#[derive(Clone, Copy)]
struct Root(*mut u8);

// SAFETY: a pointer into the buffer, which only its reader dereferences.
unsafe impl Portable for Root {
    const PLAIN: bool = true;
}
// SAFETY: a number, until its reader dereferences it.
unsafe impl Sync for Root {}

/// An arena for a function of a language without lifetimes. The arena is accessible only during the
/// call of [`during`](ScopedArena::during), even if the function keeps a pointer to this.
#[derive(Default)]
pub struct ScopedArena(RwLock<Option<Arena<'static>>>);

impl ScopedArena {
    /// Runs `work` while `arena` is accessible. It waits for calls of [`with`](ScopedArena::with)
    /// in progress.
    pub fn during<T>(&self, arena: &Arena<'_>, work: impl FnOnce() -> T) -> T {
        // SAFETY: with() gives the arena out only for the time of a call, and the drop of `_revoke`
        // waits for such calls.
        let longer = unsafe { std::mem::transmute::<Arena<'_>, Arena<'static>>(*arena) };
        *self.0.write().ignore_poison() = Some(longer);
        let _revoke = RevokeOnDrop(self);
        work()
    }

    /// Calls `work` with the arena. Several threads may do so at a time.
    ///
    /// # Errors
    /// [`Error::Invalid`] outside of [`during`](ScopedArena::during); those of `work`.
    pub fn with<T>(&self, work: impl FnOnce(&Arena<'_>) -> Result<T>) -> Result<T> {
        let arena = self.0.read().ignore_poison();
        let why = "the arena is used after the fill function has returned";
        work(arena.as_ref().ok_or_else(|| Error::invalid(why))?)
    }
}

/// A guard that makes the arena inaccessible, also if the function panics.
struct RevokeOnDrop<'a>(&'a ScopedArena);

impl Drop for RevokeOnDrop<'_> {
    fn drop(&mut self) {
        *self.0.0.write().ignore_poison() = None;
    }
}

/// Fills the buffer as [`HostBuffer::initialize`] does. `fill` returns the address of the root
/// object.
///
/// # Errors
/// As [`HostBuffer::initialize`]; [`Error::Fill`] if `fill` returns null or an address that it did
/// not allocate.
pub fn initialize<'b>(
    buffer: &'b HostBuffer,
    fill: impl FnOnce(&Arena<'b>) -> Result<*mut u8>,
) -> Result<*mut u8> {
    buffer.initialize(|arena| place(buffer, &arena, fill)).map(|root| root.0)
}

/// Fills the buffer as [`HostBuffer::initialize_job`] does. `fill` returns the address of the root
/// object.
///
/// # Errors
/// As [`HostBuffer::initialize_job`] and [`initialize`].
pub fn initialize_job<'b>(
    buffer: &'b HostBuffer,
    group: &dyn Collective,
    fill: impl FnOnce(&Arena<'b>) -> Result<*mut u8>,
) -> Result<*mut u8> {
    buffer.initialize_job(group, |arena| place(buffer, &arena, fill)).map(|root| root.0)
}

/// Returns the address of the root object, or `None` while the buffer is not filled.
///
/// # Errors
/// [`Error::Fill`] if a Rust program has filled the buffer; [`Error::Corrupt`].
pub fn root(buffer: &HostBuffer) -> Result<Option<*mut u8>> {
    Ok(buffer.root::<Root>()?.map(|root| root.0))
}

fn place<'b>(
    buffer: &'b HostBuffer,
    arena: &Arena<'b>,
    fill: impl FnOnce(&Arena<'b>) -> Result<*mut u8>,
) -> Result<Placed<'b, Root>> {
    let root = fill(arena)?;
    let why = match root.is_null() {
        true => "the fill function returned null".to_owned(),
        false if buffer.is_in_section(root) || arena.has_allocated(root)? => return arena.place(Root(root)),
        false if buffer.contains(root, 1) => {
            format!(
                "the fill function returned {root:p}, which is in the buffer but was not taken from the arena"
            )
        }
        false => format!("the fill function returned {root:p}, which is not in the buffer"),
    };
    Err(Error::Fill { why })
}
