//! An allocator of registered memory.

#![allow(unsafe_code, reason = "allocates by address, and declares the memory as an own range")]

use std::collections::BTreeMap;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};

use hostbuf_memory::Demand;
use hostbuf_memory::populate::Workers;
use hostbuf_memory::{AnonymousSegment, Pages};
use hostbuf_os::Bytes;

use hostbuf_os::poison::IgnorePoison;

use crate::error::{Error, Result};
use crate::own_ranges::{self, OwnRange};
use crate::registrar::{Registrar, Registration};
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::memory;

/// The smallest size of a block, and the alignment of all blocks: one cache line.
const MIN_BLOCK: usize = 64;
/// The length of the first slab, unless the first block is longer.
const FIRST_SLAB: usize = 2 << 20;
/// The maximum length of a slab, unless a block is longer.
const MAX_SLAB: usize = 32 << 20;

/// An allocator of blocks of registered memory. A freed block stays registered and serves the next
/// request of its size, so allocating again costs no registration. The slabs are released when the
/// allocator and all its blocks are dropped.
///
/// The size of a block is a power of two, at least 64 bytes. A block is zeroed only if its memory
/// is new. Threads may share an allocator: while one of them waits for the device, the others
/// allocate from existing slabs and free blocks.
///
/// Each slab is one registration. The first slab has 2 MiB. Each later slab is as long as all
/// earlier ones together, up to 32 MiB; a longer block gets a slab of its own. So the first small
/// block takes 2 MiB of `ulimit -l`, or of the allocator's limit if that is less. If the device or
/// the host has no room for a slab, the allocator halves its length until there is room, down to
/// the pages of the block.
///
/// An allocator and its blocks belong to the process that made them. Their memory is shared with
/// forked children: the parent reads the bytes that a child writes into a block. A child cannot
/// allocate blocks, and blocks that it drops are not freed.
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

/// The state that an allocator shares with its blocks.
struct Shared<R: Registrar> {
    fork_guard: ForkGuard,
    /// The maximum length of a slab: [`MAX_SLAB`], or less if the device registers less at once.
    max_slab: usize,
    /// The lock is not held while memory is mapped or registered, which may take long.
    state: Mutex<AllocatorState<R>>,
    /// The signal that a new slab is complete or has failed.
    grown: Condvar,
}

struct AllocatorState<R: Registrar> {
    slabs: Vec<Slab<R>>,
    /// The freed blocks by size: the index of the slab, and the offset in it.
    free: BTreeMap<usize, Vec<(usize, usize)>>,
    registered: usize,
    /// The bytes of the slabs that are being made.
    reserved: usize,
    /// The space for further blocks in each slab that is being made.
    upcoming: Vec<usize>,
    /// The maximum length of the next slab: less than that of all slabs after one had no room.
    max_slab: usize,
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
        let demand = Demand::new(length as u64, Pages::Auto);
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

/// A slab that is being made. Its bytes are reserved until it is complete or has failed.
struct Growth<'a, R: Registrar> {
    shared: &'a Shared<R>,
    /// The size of the block that needs the slab.
    size: usize,
    length: usize,
}

/// A block of registered memory. Dropping it returns it to its allocator.
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
    /// Locks the state. It must not be called in a forked child: a thread that exists only in the
    /// parent may hold the lock.
    fn lock(&self) -> MutexGuard<'_, AllocatorState<R>> {
        self.state.lock().ignore_poison()
    }

    /// Leaks the state in a forked child, where a change of it may be half done.
    fn leave_to_the_parent(self: &Arc<Self>) {
        mem::forget(self.clone());
    }
}

impl<R: Registrar> AllocatorState<R> {
    /// Takes a block of `size` bytes from the existing slabs. Returns the index of the slab and the
    /// offset in it.
    fn take(&mut self, size: usize) -> Option<(usize, usize)> {
        if let Some(place) = self.free.get_mut(&size).and_then(Vec::pop) {
            return Some(place);
        }
        let slab = self.slabs.iter().rposition(|slab| slab.used + size <= slab.length)?;
        let offset = self.slabs[slab].used;
        self.slabs[slab].used += size;
        Some((slab, offset))
    }

    /// Returns the length of a new slab for a block of `size` bytes: at least the block's pages, at
    /// most the rest of `limit`. Returns `None` if the block does not fit.
    fn next_length(&self, size: usize, limit: usize) -> Option<usize> {
        let page = memory::page_size() as usize;
        let taken = self.registered + self.reserved;
        let left = limit.saturating_sub(taken) / page * page;
        let least = size.checked_next_multiple_of(page).filter(|least| *least <= left)?;
        Some(taken.max(FIRST_SLAB).min(self.max_slab).min(left).max(least))
    }
}

impl<'a, R: Registrar> Growth<'a, R> {
    fn reserve(
        shared: &'a Shared<R>,
        state: &mut AllocatorState<R>,
        size: usize,
        length: usize,
    ) -> Growth<'a, R> {
        state.reserved += length;
        state.upcoming.push(length - size);
        Growth { shared, size, length }
    }

    fn unreserve(&self, state: &mut AllocatorState<R>) {
        state.reserved -= self.length;
        let room = self.length - self.size;
        if let Some(own) = state.upcoming.iter().position(|&other| other == room) {
            state.upcoming.swap_remove(own);
        }
        self.shared.grown.notify_all();
    }

    /// Halves the length, down to the pages of the block. Returns `None` if the slab is that short
    /// already.
    fn shorter(self) -> Option<Growth<'a, R>> {
        let page = memory::page_size() as usize;
        let least = self.size.next_multiple_of(page);
        if self.length <= least {
            return None;
        }
        let this = ManuallyDrop::new(self);
        let mut state = this.shared.lock();
        this.unreserve(&mut state);
        let length = (this.length / 2).next_multiple_of(page).max(least);
        state.max_slab = length;
        Some(Growth::reserve(this.shared, &mut state, this.size, length))
    }

    /// Adds the finished slab, with the block in it, to the allocator. Returns the locked state and
    /// the index of the slab.
    fn finish(self, slab: Slab<R>) -> (MutexGuard<'a, AllocatorState<R>>, usize) {
        let this = ManuallyDrop::new(self);
        let mut state = this.shared.lock();
        this.unreserve(&mut state);
        state.max_slab = this.shared.max_slab.min(state.max_slab * 2);
        state.registered += slab.length;
        state.slabs.push(slab);
        let index = state.slabs.len() - 1;
        (state, index)
    }
}

impl<R: Registrar> Drop for Growth<'_, R> {
    fn drop(&mut self) {
        self.unreserve(&mut self.shared.lock());
    }
}

impl<R: Registrar> PinnedAlloc<R> {
    /// Makes an allocator that registers at most `limit` bytes with `registrar`. The first
    /// allocation registers the first slab.
    #[must_use]
    pub fn new(registrar: Arc<R>, access: Access, limit: usize) -> PinnedAlloc<R> {
        let page = memory::page_size() as usize;
        let max_slab = (registrar.properties().longest / page * page).clamp(page, MAX_SLAB);
        let state = AllocatorState {
            slabs: Vec::new(),
            free: BTreeMap::new(),
            registered: 0,
            reserved: 0,
            upcoming: Vec::new(),
            max_slab,
        };
        let (fork_guard, grown) = (ForkGuard::current(), Condvar::new());
        let shared = Arc::new(Shared { fork_guard, max_slab, state: Mutex::new(state), grown });
        PinnedAlloc { registrar, access, limit, shared }
    }

    /// Allocates a block of `length` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes; [`Error::Limit`] if the limit would be exceeded, before any
    /// memory is mapped; [`Error::NoSpace`] if the host has too little memory; [`Error::Forked`] in
    /// a child of the process that made the allocator; the errors of [`Registrar::register`].
    pub fn allocate(&self, length: usize) -> Result<Pinned<R>> {
        if !self.shared.fork_guard.is_current() {
            return Err(Error::Forked);
        }
        if length == 0 {
            return Err(Error::invalid("a block of 0 bytes"));
        }
        let too_long = || {
            Error::invalid(format!("a block of {} is larger than any address space", Bytes(length as u64)))
        };
        let size = length.max(MIN_BLOCK).checked_next_power_of_two().ok_or_else(too_long)?;
        let mut state = self.shared.lock();
        loop {
            if let Some((slab, offset)) = state.take(size) {
                return Ok(self.block(&state, slab, offset, length, size));
            }
            if !state.upcoming.iter().any(|room| size <= *room) {
                break;
            }
            // Another thread makes a slab with room for this block too. A slab of its own would
            // take this thread as long.
            state = self.shared.grown.wait(state).ignore_poison();
        }
        let Some(wanted) = state.next_length(size, self.limit) else {
            let registered = state.registered + state.reserved;
            drop(state);
            let (device, limit) = (self.registrar.name(), self.limit);
            return Err(Error::Limit { device, requested: length, block: size, registered, limit });
        };
        let growth = Growth::reserve(&self.shared, &mut state, size, wanted);
        drop(state);
        let (state, slab) = self.grow(growth)?;
        Ok(self.block(&state, slab, 0, length, size))
    }

    /// Makes the block at `offset` of a slab. It has `size` bytes, of which `length` were
    /// requested.
    fn block(
        &self,
        state: &AllocatorState<R>,
        slab: usize,
        offset: usize,
        length: usize,
        size: usize,
    ) -> Pinned<R> {
        let Slab { registration, start, .. } = &state.slabs[slab];
        let (registration, start) = (registration.clone(), start + offset);
        Pinned { registration, shared: self.shared.clone(), slab, offset, size, start, length }
    }

    /// Makes the slab without holding the lock.
    fn grow<'a>(&self, mut growth: Growth<'a, R>) -> Result<(MutexGuard<'a, AllocatorState<R>>, usize)> {
        loop {
            let error = match self.slab(growth.length, growth.size) {
                Ok(slab) => return Ok(growth.finish(slab)),
                Err(error) => error,
            };
            let no_room = matches!(error, Error::NoSpace { .. }) || error.is_out_of_memory();
            growth = Some(growth).filter(|_| no_room).and_then(Growth::shorter).ok_or(error)?;
        }
    }

    fn slab(&self, length: usize, used: usize) -> Result<Slab<R>> {
        let memory = SlabMemory::new(length)?;
        let start = memory.segment.start();
        // With pages of 2 MiB the segment may be longer than `length`. The limit counts registered
        // bytes.
        let span = Span::new(start, length)?;
        let registration = Registration::with_keepalive(&self.registrar, span, self.access, memory)?;
        Ok(Slab { registration: Arc::new(registration), start, length, used })
    }

    /// Returns the number of registered bytes. In a forked child it is 0, since the registrations
    /// belong to the parent.
    #[must_use]
    pub fn registered(&self) -> usize {
        if self.shared.fork_guard.is_current() { self.shared.lock().registered } else { 0 }
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
    /// Returns the key for requests to the device that concern the block.
    #[must_use]
    pub fn key(&self) -> R::Key {
        self.registration.key()
    }

    /// Returns the device's handle of the registration that contains the block.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        self.registration.handle()
    }

    /// Returns the registered range that contains the block.
    ///
    /// # Panics
    /// Never: a slab is host memory.
    #[must_use]
    pub fn registered(&self) -> Span {
        self.registration.span().expect("a slab is host memory")
    }
}

impl<R: Registrar> Deref for Pinned<R> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes belong to this block alone until it is dropped. They lie in the slab,
        // which the registration keeps mapped.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.length) }
    }
}

impl<R: Registrar> DerefMut for Pinned<R> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.length) }
    }
}

impl<R: Registrar> Drop for Pinned<R> {
    fn drop(&mut self) {
        if !self.shared.fork_guard.is_current() {
            return self.shared.leave_to_the_parent();
        }
        self.shared.lock().free.entry(self.size).or_default().push((self.slab, self.offset));
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
    fn blocks_are_disjoint_registered_once_and_reused() {
        let (fake, pinned) = pinned(1 << 30);
        let mut blocks: Vec<_> = (1..200).map(|n| pinned.allocate(n * 37).unwrap()).collect();
        for (n, block) in blocks.iter_mut().enumerate() {
            assert!(block.iter().all(|&b| b == 0) && (block.as_ptr() as usize).is_multiple_of(MIN_BLOCK));
            assert!(block.registered().contains(Span::of(block).unwrap()));
            block.fill(n as u8);
        }
        assert!(blocks.iter().enumerate().all(|(n, block)| block.iter().all(|&b| b == n as u8)));
        let addresses: Vec<_> = blocks.iter().map(|b| b.as_ptr()).collect();
        drop(blocks);
        for n in 1..200 {
            let again = pinned.allocate(n * 37).unwrap();
            assert!(addresses.contains(&again.as_ptr()));
        }
        assert_eq!((fake.made(), fake.live().len()), (1, 1));
        let last = pinned.allocate(1).unwrap();
        drop(pinned);
        assert_eq!(fake.live().len(), 1);
        drop(last);
        assert!(fake.live().is_empty());
    }

    #[test]
    fn the_limit_holds_and_a_large_block_gets_its_own_slab() {
        let (fake, pinned) = pinned(80 << 20);
        let large = pinned.allocate(64 << 20).unwrap();
        assert_eq!(large.len(), 64 << 20);
        assert!(matches!(pinned.allocate(64 << 20), Err(Error::Limit { .. })));
        // The rest of the limit is enough for a shorter slab.
        drop(pinned.allocate(1 << 20).unwrap());
        assert!(pinned.registered() <= 80 << 20);
        assert_eq!(fake.made(), 2);
        drop(large);
        drop(pinned.allocate(40 << 20).unwrap());
        assert_eq!(fake.made(), 2);
        assert!(matches!(pinned.allocate(0), Err(Error::Invalid { .. })));
    }
}
