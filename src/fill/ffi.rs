//! Buffers that are filled and read by programs in other languages: what all find there is an address, and what lies at it
//! is theirs. All languages have the same, so that one may read what another has filled.

#![allow(unsafe_code)]

use std::sync::{PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::fill::arena::{Arena, Placed};
use crate::fill::portable::Portable;
use crate::job::Collective;
use crate::segment::handle::HostBuffer;

/// Where the object lies that all others find.
#[derive(Clone, Copy)]
struct Root(*mut u8);

// SAFETY: a pointer into the buffer, which only its reader follows.
unsafe impl Portable for Root {
    const PLAIN: bool = true;
}
// SAFETY: a number, until its reader follows it.
unsafe impl Sync for Root {}

/// An arena for a function that knows no lifetimes: it may keep what it was given, and has nothing of it when it has returned.
#[derive(Default)]
pub struct Lent(RwLock<Option<Arena<'static>>>);

impl Lent {
    /// Runs `work` while the arena can be had; afterwards nobody has it.
    pub fn during<T>(&self, arena: &Arena<'_>, work: impl FnOnce() -> T) -> T {
        // SAFETY: with() lets it out for the time of a call only, and the end of this waits for such calls.
        let longer = unsafe { std::mem::transmute::<Arena<'_>, Arena<'static>>(*arena) };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(longer);
        let _end = End(self);
        work()
    }

    /// What `work` makes of the arena. It waits for no other thread that does the same.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is none, or none any more; those of `work`.
    pub fn with<T>(&self, work: impl FnOnce(&Arena<'_>) -> Result<T>) -> Result<T> {
        let arena = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let why = "the arena is used after the function that fills has returned";
        work(arena.as_ref().ok_or_else(|| Error::invalid(why))?)
    }
}

/// Takes the arena away, also when the function panics.
struct End<'a>(&'a Lent);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// As [`HostBuffer::initialize`]; `fill` answers where the object is that all others shall find, or null.
///
/// # Errors
/// As there; [`Error::Fill`] when what `fill` answers was not taken from the arena.
pub fn initialize<'b>(
    buffer: &'b HostBuffer,
    fill: impl FnOnce(&Arena<'b>) -> Result<*mut u8>,
) -> Result<*mut u8> {
    buffer.initialize(|arena| place(buffer, &arena, fill)).map(|root| root.0)
}

/// As [`HostBuffer::initialize_job`], with such a `fill`.
///
/// # Errors
/// As there, and as [`initialize`].
pub fn initialize_job<'b>(
    buffer: &'b HostBuffer,
    group: &dyn Collective,
    fill: impl FnOnce(&Arena<'b>) -> Result<*mut u8>,
) -> Result<*mut u8> {
    buffer.initialize_job(group, |arena| place(buffer, &arena, fill)).map(|root| root.0)
}

/// As [`HostBuffer::root`]: the object's address.
///
/// # Errors
/// As there: [`Error::Fill`] when a Rust program has filled it.
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
        true => "the function that fills it answered null".to_owned(),
        false if arena.has_given(root)? => return arena.place(Root(root)),
        false if buffer.contains(root, 1) => {
            format!(
                "the function that fills it answered {root:p}, which is in the buffer but was not taken from the arena"
            )
        }
        false => format!("the function that fills it answered {root:p}, which is not in the buffer"),
    };
    Err(Error::Fill { why })
}
