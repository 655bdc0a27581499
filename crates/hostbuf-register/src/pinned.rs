//! Memory that is registered from the start: allocate, use, send many times.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};

use hostbuf_memory::populate::Workers;
use hostbuf_memory::space::Demand;
use hostbuf_memory::{AnonymousSegment, Pages};
use hostbuf_os::Bytes;

use crate::error::{Error, Result};
use crate::own_ranges::{self, OwnRange};
use crate::poison::IgnorePoison;
use crate::registrar::{Registrar, Registration};
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::memory;

/// The shortest block, and the alignment of all: one cache line.
const LEAST: usize = 64;
/// What is registered for the first block, unless it is longer.
const FIRST: usize = 2 << 20;
/// What is registered at a time at most, unless a block is longer.
const LONGEST: usize = 32 << 20;

/// Gives out blocks of registered memory. What is freed is kept for the next block of its size,
/// registered as it is, so that allocating again costs no registration; slabs of memory go when the
/// allocator and all its blocks have gone.
///
/// Blocks have sizes of powers of two, at least 64 bytes, and are zeroed only when their memory is
/// new. Threads may share it: while one waits for the device, others take blocks that are there,
/// and give them back.
///
/// Slabs are registered whole: the first has 2 MiB, each later one as much as all before it
/// together, up to 32 MiB, and a block that is longer has one of its own. So the first small block
/// takes 2 MiB of `ulimit -l` (or of the limit given here, where that is less). Where the device or
/// the host has no room for so much, a slab is halved until it has, down to the block's own pages.
///
/// It belongs to the process that made it, and so do its blocks: their memory is shared, so what a
/// forked child writes into a block its parent reads. A child gets no blocks from it, and gives
/// none back.
///
/// ```
/// # use std::sync::Arc;
/// # use hostbuf_register::{Access, Mlock, PinnedAlloc};
/// let pinned = PinnedAlloc::new(Arc::new(Mlock::new()), Access::READ, 64 << 20);
/// let mut message = pinned.allocate(1000)?;
/// message.fill(7);
/// // ... send it, by message.key() ...
/// assert_eq!(message.len(), 1000);
/// # Ok::<(), hostbuf_register::Error>(())
/// ```
pub struct PinnedAlloc<R: Registrar> {
    registrar: Arc<R>,
    access: Access,
    limit: usize,
    shared: Arc<Shared<R>>,
}

/// What an allocator and its blocks have in common.
struct Shared<R: Registrar> {
    fork_guard: ForkGuard,
    /// Never held while memory is taken or registered: that may take long.
    state: Mutex<State<R>>,
    /// A slab has come, or will not.
    grown: Condvar,
}

struct State<R: Registrar> {
    slabs: Vec<Slab<R>>,
    /// Freed blocks by size: which slab, and where in it.
    free: BTreeMap<usize, Vec<(usize, usize)>>,
    registered: usize,
    /// Bytes of the slabs that are being made.
    reserved: usize,
    /// The room that each slab that is being made will have for others' blocks.
    coming: Vec<usize>,
    /// What is registered at a time at most: less than [`LONGEST`] where that was too much before.
    longest: usize,
}

struct Slab<R: Registrar> {
    registration: Arc<Registration<R>>,
    start: usize,
    length: usize,
    used: usize,
}

/// The memory of a slab. A cache registers blocks of it without watching them.
struct SlabMemory {
    own: OnceLock<OwnRange>,
    segment: AnonymousSegment,
}

impl SlabMemory {
    fn new(length: usize) -> Result<Arc<SlabMemory>> {
        let demand = Demand { size: length as u64, pages: Pages::Auto, lazy: false };
        let segment = AnonymousSegment::new("hostbuf:pinned", demand, Workers::of_this_process())?;
        let span = Span::new(segment.start(), segment.len())?;
        let memory = Arc::new(SlabMemory { own: OnceLock::new(), segment });
        let keeper: Weak<SlabMemory> = Arc::downgrade(&memory);
        // SAFETY: the segment stays mapped until the keeper is dropped, and nothing discards its
        // pages.
        memory.own.get_or_init(|| unsafe { own_ranges::declare(span, keeper) });
        Ok(memory)
    }
}

/// A slab that is being made: its bytes are reserved until it is there, or cannot be.
struct Growth<'a, R: Registrar> {
    shared: &'a Shared<R>,
    /// The block that it is made for.
    size: usize,
    length: usize,
}

/// A block. It goes back to its allocator when it is dropped.
pub struct Pinned<R: Registrar> {
    registration: Arc<Registration<R>>,
    shared: Arc<Shared<R>>,
    slab: usize,
    offset: usize,
    size: usize,
    start: usize,
    length: usize,
}

impl<R: Registrar> Shared<R> {
    /// To be asked in the process that made it only: a thread that a child does not have may hold
    /// the lock.
    fn held(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().ignore_poison()
    }

    /// In a forked child the state may be in the middle of a change. So it is never freed there.
    fn leave_to_the_parent(self: &Arc<Self>) {
        mem::forget(self.clone());
    }
}

impl<R: Registrar> State<R> {
    /// Room for a block of `size` bytes: which slab, and where in it.
    fn place(&mut self, size: usize) -> Option<(usize, usize)> {
        if let Some(place) = self.free.get_mut(&size).and_then(Vec::pop) {
            return Some(place);
        }
        let slab = self.slabs.iter().rposition(|slab| slab.used + size <= slab.length)?;
        let offset = self.slabs[slab].used;
        self.slabs[slab].used += size;
        Some((slab, offset))
    }

    /// How long a new slab for a block of `size` bytes is: at least its pages, and at most what is
    /// left of `limit`.
    fn next_length(&self, size: usize, limit: usize) -> Option<usize> {
        let page = memory::page_size() as usize;
        let taken = self.registered + self.reserved;
        let left = limit.saturating_sub(taken) / page * page;
        let least = size.checked_next_multiple_of(page).filter(|least| *least <= left)?;
        Some(taken.max(FIRST).min(self.longest).min(left).max(least))
    }
}

impl<'a, R: Registrar> Growth<'a, R> {
    fn reserve(shared: &'a Shared<R>, state: &mut State<R>, size: usize, length: usize) -> Growth<'a, R> {
        state.reserved += length;
        state.coming.push(length - size);
        Growth { shared, size, length }
    }

    fn give_back(&self, state: &mut State<R>) {
        state.reserved -= self.length;
        let room = self.length - self.size;
        if let Some(own) = state.coming.iter().position(|&other| other == room) {
            state.coming.swap_remove(own);
        }
        self.shared.grown.notify_all();
    }

    /// Half as long, or as long as its block; `None` when it is that short already.
    fn shorter(self) -> Option<Growth<'a, R>> {
        let page = memory::page_size() as usize;
        let least = self.size.next_multiple_of(page);
        if self.length <= least {
            return None;
        }
        let this = ManuallyDrop::new(self);
        let mut state = this.shared.held();
        this.give_back(&mut state);
        let length = (this.length / 2).next_multiple_of(page).max(least);
        state.longest = length;
        Some(Growth::reserve(this.shared, &mut state, this.size, length))
    }

    /// The slab is there, with its block in it. Its place.
    fn done(self, slab: Slab<R>) -> (MutexGuard<'a, State<R>>, usize) {
        let this = ManuallyDrop::new(self);
        let mut state = this.shared.held();
        this.give_back(&mut state);
        state.longest = LONGEST.min(state.longest * 2);
        state.registered += slab.length;
        state.slabs.push(slab);
        let place = state.slabs.len() - 1;
        (state, place)
    }
}

impl<R: Registrar> Drop for Growth<'_, R> {
    fn drop(&mut self) {
        self.give_back(&mut self.shared.held());
    }
}

impl<R: Registrar> PinnedAlloc<R> {
    /// An allocator that registers at most `limit` bytes with `registrar`. Nothing is registered
    /// yet.
    #[must_use]
    pub fn new(registrar: Arc<R>, access: Access, limit: usize) -> PinnedAlloc<R> {
        let state = State {
            slabs: Vec::new(),
            free: BTreeMap::new(),
            registered: 0,
            reserved: 0,
            coming: Vec::new(),
            longest: LONGEST,
        };
        let (fork_guard, grown) = (ForkGuard::current(), Condvar::new());
        let shared = Arc::new(Shared { fork_guard, state: Mutex::new(state), grown });
        PinnedAlloc { registrar, access, limit, shared }
    }

    /// A block of `length` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes; [`Error::Limit`] above the limit, before any memory is
    /// taken; [`Error::NoSpace`]; [`Error::Forked`] in a child of the process that made the
    /// allocator; as [`Registrar::register`].
    pub fn allocate(&self, length: usize) -> Result<Pinned<R>> {
        if !self.shared.fork_guard.is_current() {
            return Err(Error::Forked);
        }
        if length == 0 {
            return Err(Error::invalid("a block of 0 bytes"));
        }
        let too_long =
            || Error::invalid(format!("a block of {}: no address space has so much", Bytes(length as u64)));
        let size = length.max(LEAST).checked_next_power_of_two().ok_or_else(too_long)?;
        let mut state = self.shared.held();
        loop {
            if let Some((slab, offset)) = state.place(size) {
                return Ok(self.block(&state, slab, offset, length, size));
            }
            if !state.coming.iter().any(|room| size <= *room) {
                break;
            }
            // Another thread makes a slab that has room for both: one of its own would wait for the
            // device as long.
            state = self.shared.grown.wait(state).ignore_poison();
        }
        let Some(wanted) = state.next_length(size, self.limit) else {
            let registered = state.registered + state.reserved;
            drop(state);
            let (device, limit) = (self.registrar.name(), self.limit);
            return Err(Error::Limit { device, asked: length, block: size, registered, limit });
        };
        let growth = Growth::reserve(&self.shared, &mut state, size, wanted);
        drop(state);
        let (state, slab) = self.grow(growth)?;
        Ok(self.block(&state, slab, 0, length, size))
    }

    /// The block at `offset` of a slab. It has `size` bytes, of which `length` were asked for.
    fn block(&self, state: &State<R>, slab: usize, offset: usize, length: usize, size: usize) -> Pinned<R> {
        let Slab { registration, start, .. } = &state.slabs[slab];
        let (registration, start) = (registration.clone(), start + offset);
        Pinned { registration, shared: self.shared.clone(), slab, offset, size, start, length }
    }

    /// Makes the slab; without the lock.
    fn grow<'a>(&self, mut growth: Growth<'a, R>) -> Result<(MutexGuard<'a, State<R>>, usize)> {
        loop {
            let error = match self.slab(growth.length, growth.size) {
                Ok(slab) => return Ok(growth.done(slab)),
                Err(error) => error,
            };
            let no_room = matches!(error, Error::NoSpace { .. }) || error.is_out_of_memory();
            growth = Some(growth).filter(|_| no_room).and_then(Growth::shorter).ok_or(error)?;
        }
    }

    fn slab(&self, length: usize, used: usize) -> Result<Slab<R>> {
        let memory = SlabMemory::new(length)?;
        let start = memory.segment.start();
        // Pages of 2 MiB may have made the segment longer than that, and the limit is of what is
        // registered.
        let span = Span::new(start, length)?;
        let registration = Registration::with_keepalive(&self.registrar, span, self.access, memory)?;
        Ok(Slab { registration: Arc::new(registration), start, length, used })
    }

    /// Bytes that are registered now; none in a forked child, whose they are not.
    #[must_use]
    pub fn registered(&self) -> usize {
        if self.shared.fork_guard.is_current() { self.shared.held().registered } else { 0 }
    }
}

impl<R: Registrar> Drop for PinnedAlloc<R> {
    fn drop(&mut self) {
        if !self.shared.fork_guard.is_current() {
            self.shared.leave_to_the_parent();
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
    /// What requests about the block are made with.
    #[must_use]
    pub fn key(&self) -> R::Key {
        self.registration.key()
    }

    /// All that the device gave for the memory that the block lies in.
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
        // SAFETY: this block's alone until it is dropped, inside the slab, which the registration
        // keeps mapped.
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
        if !self.shared.fork_guard.is_current() {
            return self.shared.leave_to_the_parent();
        }
        self.shared.held().free.entry(self.size).or_default().push((self.slab, self.offset));
    }
}

impl<R: Registrar> fmt::Debug for Pinned<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:#x}, {})", self.start, Bytes(self.length as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overlap;
    use crate::testing::fake::Fake;

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
        assert!(matches!(pinned.allocate(64 << 20), Err(Error::Limit { .. })));
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
