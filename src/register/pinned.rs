//! Memory that is registered from the start: allocate, use, send many times.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::{HostBuffer, Options};
use crate::error::{Bytes, Error, Result};
use crate::job::Solo;
use crate::os::lineage::Lineage;
use crate::register::registrar::{Registrar, Registration};
use crate::span::{Access, Span};

/// The shortest block, and the alignment of all: one cache line.
const LEAST: usize = 64;
/// What is registered at a time, unless a block is longer.
const SLAB: usize = 32 << 20;

/// Gives out blocks of registered memory. What is freed is kept for the next block of its size, registered as it is, so that
/// allocating again costs no registration; slabs of memory go when the allocator and all its blocks have gone.
///
/// Blocks have sizes of powers of two, at least 64 bytes, and are zeroed only when their memory is new. Threads may share it.
///
/// It belongs to the process that made it, and so do its blocks: their memory is shared, so what a forked child writes into a
/// block its parent reads. A child gets no blocks from it, and gives none back.
///
/// ```
/// # use std::sync::Arc;
/// # use hostbuf::register::{Access, Mlock, PinnedAlloc};
/// let pinned = PinnedAlloc::new(Arc::new(Mlock::new()), Access::READ, 64 << 20);
/// let mut message = pinned.allocate(1000)?;
/// message.fill(7);
/// // ... send it, by message.handle() ...
/// assert_eq!(message.len(), 1000);
/// # Ok::<(), hostbuf::Error>(())
/// ```
pub struct PinnedAlloc<R: Registrar> {
    registrar: Arc<R>,
    access: Access,
    limit: usize,
    lineage: Lineage,
    state: Arc<Mutex<State<R>>>,
}

struct State<R: Registrar> {
    slabs: Vec<Slab<R>>,
    /// Freed blocks by size: which slab, and where in it.
    free: BTreeMap<usize, Vec<(usize, usize)>>,
    registered: usize,
}

struct Slab<R: Registrar> {
    registration: Arc<Registration<R>>,
    start: usize,
    length: usize,
    used: usize,
}

/// A block. It goes back to its allocator when it is dropped.
pub struct Pinned<R: Registrar> {
    registration: Arc<Registration<R>>,
    lineage: Lineage,
    state: Arc<Mutex<State<R>>>,
    slab: usize,
    offset: usize,
    size: usize,
    start: usize,
    length: usize,
}

fn held<R: Registrar>(state: &Mutex<State<R>>) -> MutexGuard<'_, State<R>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: Registrar> PinnedAlloc<R> {
    /// An allocator that registers at most `limit` bytes with `registrar`. Nothing is registered yet.
    #[must_use]
    pub fn new(registrar: Arc<R>, access: Access, limit: usize) -> PinnedAlloc<R> {
        let state = State { slabs: Vec::new(), free: BTreeMap::new(), registered: 0 };
        let state = Arc::new(Mutex::new(state));
        PinnedAlloc { registrar, access, limit, lineage: Lineage::here(), state }
    }

    /// A block of `length` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes; [`Error::Budget`] above the limit; [`Error::NoSpace`]; [`Error::Forked`] in a child of
    /// the process that made the allocator; as [`Registrar::register`].
    pub fn allocate(&self, length: usize) -> Result<Pinned<R>> {
        if !self.lineage.is_here() {
            return Err(Error::Forked);
        }
        if length == 0 {
            return Err(Error::invalid("a block of 0 bytes"));
        }
        let too_long = || Error::invalid(format!("a block of {}", Bytes(length as u64)));
        let size = length.max(LEAST).checked_next_power_of_two().ok_or_else(too_long)?;
        let mut state = held(&self.state);
        let reused = state.free.get_mut(&size).and_then(Vec::pop);
        let (slab, offset) = match reused {
            Some(place) => place,
            None => {
                let room = |s: &Slab<R>| s.used.next_multiple_of(LEAST) + size <= s.length;
                let slab = match state.slabs.iter().rposition(room) {
                    Some(slab) => slab,
                    None => self.grow(&mut state, size)?,
                };
                let at = &mut state.slabs[slab];
                let offset = at.used.next_multiple_of(LEAST);
                at.used = offset + size;
                (slab, offset)
            }
        };
        let Slab { registration, start, .. } = &state.slabs[slab];
        Ok(Pinned {
            registration: registration.clone(),
            lineage: self.lineage,
            state: self.state.clone(),
            slab,
            offset,
            size,
            start: start + offset,
            length,
        })
    }

    /// One more slab, with room for `size` bytes.
    fn grow(&self, state: &mut State<R>, size: usize) -> Result<usize> {
        let left = self.limit.saturating_sub(state.registered);
        // The last slab may be shorter than the others.
        let wanted = if size >= SLAB { size } else { SLAB.min(left).max(size) };
        let buffer = HostBuffer::allocate(&Solo, Options::new(wanted as u64).name("pinned"))?;
        let (start, length) = (buffer.as_ptr().as_ptr() as usize, buffer.len());
        if length > left {
            return Err(Error::Budget {
                device: self.registrar.name(),
                span: Span::new(start, size)?,
                regions: (state.slabs.len(), usize::MAX),
                bytes: (state.registered, self.limit),
                leased: state.registered > 0,
            });
        }
        let registration = Arc::new(buffer.register(&self.registrar, .., self.access)?);
        state.registered += length;
        state.slabs.push(Slab { registration, start, length, used: 0 });
        Ok(state.slabs.len() - 1)
    }

    /// Bytes that are registered now; none in a forked child, whose they are not.
    #[must_use]
    pub fn registered(&self) -> usize {
        if self.lineage.is_here() { held(&self.state).registered } else { 0 }
    }
}

/// In a forked child the state is never looked at: a thread that the child does not have may hold its lock, or be in the
/// middle of changing it. So it is never freed there either.
fn leave_to_the_parent<R: Registrar>(state: &Arc<Mutex<State<R>>>) {
    std::mem::forget(state.clone());
}

impl<R: Registrar> Drop for PinnedAlloc<R> {
    fn drop(&mut self) {
        if !self.lineage.is_here() {
            leave_to_the_parent(&self.state);
        }
    }
}

impl<R: Registrar> fmt::Debug for PinnedAlloc<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.registrar.name();
        f.debug_struct("PinnedAlloc").field("device", &name).field("registered", &self.registered()).finish()
    }
}

impl<R: Registrar> Pinned<R> {
    /// What the device gave for the memory that the block lies in.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        self.registration.handle()
    }

    /// The registered range that the block lies in.
    #[must_use]
    pub fn registered(&self) -> Span {
        self.registration.span()
    }
}

impl<R: Registrar> Deref for Pinned<R> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this block's alone until it is dropped, inside the slab, which the registration keeps mapped.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.length) }
    }
}

impl<R: Registrar> DerefMut for Pinned<R> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.length) }
    }
}

impl<R: Registrar> Drop for Pinned<R> {
    fn drop(&mut self) {
        if !self.lineage.is_here() {
            return leave_to_the_parent(&self.state);
        }
        held(&self.state).free.entry(self.size).or_default().push((self.slab, self.offset));
    }
}

impl<R: Registrar> fmt::Debug for Pinned<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:#x}, {} bytes)", self.start, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::Overlap;
    use crate::register::fake::Fake;

    fn pinned(limit: usize) -> (Arc<Fake>, PinnedAlloc<Fake>) {
        let fake = Arc::new(Fake::new(Overlap::Refused));
        (fake.clone(), PinnedAlloc::new(fake, Access::WRITE, limit))
    }

    #[test]
    fn blocks_are_apart_registered_once_and_used_again() {
        let (fake, pinned) = pinned(1 << 30);
        let mut blocks: Vec<_> = (1..200).map(|n| pinned.allocate(n * 37).unwrap()).collect();
        for (n, block) in blocks.iter_mut().enumerate() {
            assert!(block.iter().all(|&b| b == 0) && (block.as_ptr() as usize).is_multiple_of(LEAST));
            assert!(block.registered().contains(Span::of(block).unwrap()));
            block.fill(n as u8);
        }
        assert!(blocks.iter().enumerate().all(|(n, block)| block.iter().all(|&b| b == n as u8)));
        let places: Vec<_> = blocks.iter().map(|b| b.as_ptr()).collect();
        drop(blocks);
        for n in 1..200 {
            let again = pinned.allocate(n * 37).unwrap();
            assert!(places.contains(&again.as_ptr()));
        }
        assert_eq!((fake.made(), fake.live().len()), (1, 1));
        let last = pinned.allocate(1).unwrap();
        drop(pinned);
        assert_eq!(fake.live().len(), 1);
        drop(last);
        assert!(fake.live().is_empty());
    }

    #[test]
    fn the_limit_holds_and_large_blocks_have_slabs_of_their_own() {
        let (fake, pinned) = pinned(80 << 20);
        let large = pinned.allocate(64 << 20).unwrap();
        assert_eq!(large.len(), 64 << 20);
        assert!(matches!(pinned.allocate(64 << 20), Err(Error::Budget { .. })));
        // What is left makes one shorter slab.
        drop(pinned.allocate(1 << 20).unwrap());
        assert!(pinned.registered() <= 80 << 20);
        assert_eq!(fake.made(), 2);
        drop(large);
        drop(pinned.allocate(40 << 20).unwrap());
        assert_eq!(fake.made(), 2);
        assert!(matches!(pinned.allocate(0), Err(Error::Invalid { .. })));
    }
}
