//! The lease counts and hints of each thread, which it writes without touching a cache line of
//! another thread.
//!
//! Each thread has one counter for each slot: leases taken in the low half, leases dropped in the
//! high half. Another thread than the one that took a lease may drop it, so only the sum over all
//! threads is meaningful: taken minus dropped.
//!
//! A thread that ends a registration marks the slot and then sums the counters. A thread that takes
//! a lease counts it and then reads the mark. Both do so sequentially consistently, so at least one
//! of the two sees the other (the store-buffering pattern, Dekker's algorithm).
//!
//! The kernel zeroes the memory in a forked child, so a child has no hints and no hits, and a hit
//! need not check for a fork.
//!
//! The counters of a thread that ends are reused by the next new thread, and go on counting.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cache_slot::CacheSlot;
use super::hints::{self, FoundHint, Hint, HintPair, HintSizes, OverflowBucket};
use super::sync::{AtomicBool, AtomicPtr, AtomicU64, CounterArray, Mutex, MutexGuard, thread_local};
#[cfg(not(all(test, loom)))]
use hostbuf_os::array::Zero;
use hostbuf_os::poison::IgnorePoison;

/// The half of a counter with the leases taken.
const LOW: u64 = 0xffff_ffff;
/// The number of counters in a cache line.
const IN_LINE: usize = 8;

/// A cache line of counters.
#[repr(C, align(64))]
struct CounterLine([AtomicU64; IN_LINE]);

// SAFETY: integers, for which zero bytes are valid.
#[cfg(not(all(test, loom)))]
#[allow(unsafe_code, reason = "the all-zero bytes are a valid value")]
unsafe impl Zero for CounterLine {}

#[cfg(all(test, loom))]
impl Default for CounterLine {
    fn default() -> CounterLine {
        CounterLine(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// A cache line of hints under loom.
#[cfg(all(test, loom))]
#[repr(C, align(64))]
struct HintLine([std::sync::atomic::AtomicU64; IN_LINE]);

// SAFETY: integers, for which zero bytes are valid.
#[cfg(all(test, loom))]
#[allow(unsafe_code, reason = "the all-zero bytes are a valid value")]
unsafe impl hostbuf_os::array::Zero for HintLine {}

/// The memory of one thread: a counter for each slot, and behind them the pairs and buckets of its
/// hints.
struct ThreadBlock {
    lines: CounterArray<CounterLine>,
    /// The hints under loom, whose counters are more than integers, so that no hints can lie behind
    /// them.
    #[cfg(all(test, loom))]
    hints: hostbuf_os::array::Array<HintLine>,
    /// True while a thread has the block.
    in_use: AtomicBool,
    next: AtomicPtr<ThreadBlock>,
}

impl ThreadBlock {
    /// Returns the counter of a slot.
    fn counter(&self, slot: CacheSlot) -> &AtomicU64 {
        &self.lines[slot.index() / IN_LINE].0[slot.index() % IN_LINE]
    }
}

/// The lease counts of all threads for one cache, and their hints.
pub(super) struct LeaseCounts<K> {
    /// The number of the cache, which no other cache of the process has. It is never 0.
    number: u64,
    slots: usize,
    /// The number of lines of counters in a block.
    lines: usize,
    sizes: HintSizes,
    /// The blocks of all threads. The list only grows, and is freed with its last user.
    list: Arc<BlockList>,
    keys: PhantomData<fn(K) -> K>,
}

/// The blocks of all threads of one cache.
struct BlockList {
    /// True if the cache has been dropped, so that threads can release their blocks.
    gone: AtomicBool,
    head: AtomicPtr<ThreadBlock>,
    /// The counters of threads whose thread-local storage is gone.
    shared_counts: CounterArray<CounterLine>,
    shared_lock: Mutex<()>,
}

impl Drop for BlockList {
    #[allow(unsafe_code, reason = "frees the blocks of a list of raw pointers")]
    fn drop(&mut self) {
        let mut at = self.head.load(Ordering::Relaxed);
        while !at.is_null() {
            // SAFETY: adopt() has leaked each block from a box, and nobody else has the list.
            let block = unsafe { Box::from_raw(at) };
            at = block.next.load(Ordering::Relaxed);
        }
    }
}

impl<K> Drop for LeaseCounts<K> {
    fn drop(&mut self) {
        self.list.gone.store(true, Ordering::Relaxed);
    }
}

/// A thread's hold on its block of one cache.
struct HeldBlock {
    number: u64,
    block: NonNull<ThreadBlock>,
    list: Arc<BlockList>,
}

impl Drop for HeldBlock {
    #[allow(unsafe_code, reason = "reads a block that the list keeps")]
    fn drop(&mut self) {
        // A later request while this thread ends must not use the block, which another thread may
        // get next.
        let _ = LAST_USED.try_with(|last| last.set((0, std::ptr::null())));
        // SAFETY: the list, which this struct holds, owns the block.
        unsafe { self.block.as_ref() }.in_use.store(false, Ordering::Release);
    }
}

thread_local! {
    /// The number of the cache that this thread used last, and its counters for that cache.
    static LAST_USED: Cell<(u64, *const CounterLine)> = const { Cell::new((0, std::ptr::null())) };
    /// The blocks that this thread holds.
    static HELD_BLOCKS: RefCell<Vec<HeldBlock>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's counters and hints for one cache.
pub(super) struct ThreadCounts<'a, K> {
    counts: &'a LeaseCounts<K>,
    lines: NonNull<CounterLine>,
}

impl<K> Clone for ThreadCounts<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for ThreadCounts<'_, K> {}

#[allow(unsafe_code, reason = "counters and hints are found by their address in a block")]
impl<'a, K: Copy> ThreadCounts<'a, K> {
    /// Counts a lease that this thread takes, before anything that follows in program order.
    #[inline(always)]
    pub(super) fn count(self, slot: CacheSlot) {
        add_lease(self.counter(slot));
    }

    /// Counts a lease of `slot`, as [`take`](ThreadCounts::count) does when a fence follows.
    #[inline(always)]
    pub(super) fn count_before_fence(self, slot: CacheSlot) {
        add_lease_before_fence(self.counter(slot));
    }

    /// Counts a lease that this thread drops, after everything that precedes in program order.
    #[inline(always)]
    pub(super) fn count_return(self, slot: CacheSlot) {
        add_return(self.counter(slot));
    }

    /// Undoes the last count of a lease that is not handed out.
    #[cold]
    pub(super) fn uncount(self, slot: CacheSlot) {
        subtract_lease(self.counter(slot));
    }

    /// Returns the thread's counter of a slot.
    #[inline(always)]
    fn counter(&self, slot: CacheSlot) -> &AtomicU64 {
        debug_assert!(slot.index() < self.counts.slots);
        // SAFETY: `lines` begins with `slots` counters of this thread, and lives as long as the
        // list.
        unsafe { self.lines.cast::<AtomicU64>().add(slot.index()).as_ref() }
    }

    /// Returns the thread's primary hint for a page.
    #[inline(always)]
    pub(super) fn primary_hint(&self, page: usize) -> Option<FoundHint<'a, K>> {
        let place = self.counts.sizes.place(page);
        // SAFETY: the hints belong to this thread.
        unsafe { self.pair(place.pair).find(place) }
    }

    /// Returns the slots of the thread's overflow hints for a page.
    pub(super) fn overflow_hints(&self, page: usize) -> impl Iterator<Item = CacheSlot> + use<'a, K> {
        let place = self.counts.sizes.place(page);
        self.bucket(place.bucket(self.counts.sizes)).slots_for(place)
    }

    /// Stores the primary hint of a page if there is a place that is free or `outdated`.
    pub(super) fn promote_hint(&self, page: usize, hint: Hint<K>, outdated: impl Fn(CacheSlot, u32) -> bool) {
        let place = self.counts.sizes.place(page);
        // SAFETY: the hints belong to this thread.
        unsafe { self.pair(place.pair).store(place, hint, false, outdated) };
    }

    /// Stores a hint of a page, if possible in a free place, in place of an `outdated` hint (a slot
    /// and a version), or of a hint whose slot lies `elsewhere`.
    pub(super) fn store_hint(
        &self,
        page: usize,
        hint: Hint<K>,
        outdated: impl Fn(CacheSlot, u32) -> bool,
        elsewhere: impl Fn(CacheSlot) -> bool,
    ) {
        debug_assert!(hint.slot.index() < self.counts.slots);
        let place = self.counts.sizes.place(page);
        let bucket = self.bucket(place.bucket(self.counts.sizes));
        // SAFETY: the hints belong to this thread.
        unsafe { hints::store(self.pair(place.pair), bucket, place, hint, outdated, elsewhere) };
    }

    /// Returns a pair of the thread's primary hints.
    #[inline(always)]
    fn pair(&self, number: usize) -> &'a HintPair<K> {
        debug_assert!(number < self.counts.sizes.pairs);
        // SAFETY: the hints begin with that many pairs, and nothing else uses their memory.
        unsafe { self.hints().cast::<HintPair<K>>().add(number).as_ref() }
    }

    /// Returns a bucket of the thread's overflow hints.
    fn bucket(&self, number: usize) -> &'a OverflowBucket {
        debug_assert!(number < self.counts.sizes.buckets);
        // SAFETY: that many buckets, of half a line each, follow the pairs, and nothing else uses
        // their memory.
        unsafe {
            self.hints().byte_add(self.counts.pairs_size()).cast::<OverflowBucket>().add(number).as_ref()
        }
    }

    #[cfg(not(all(test, loom)))]
    #[inline(always)]
    fn hints(&self) -> NonNull<u8> {
        // SAFETY: the hints lie behind the lines of counters.
        unsafe { self.lines.add(self.counts.lines) }.cast()
    }

    #[cfg(all(test, loom))]
    fn hints(&self) -> NonNull<u8> {
        let own = self.counts.blocks().find(|block| block.lines.as_ptr() == self.lines.as_ptr().cast_const());
        NonNull::from(&own.expect("a block of this cache").hints[0]).cast()
    }
}

/// Counts a lease. Only one thread writes a counter, so nothing is lost between the load and the
/// swap, which is sequentially consistent.
#[inline(always)]
fn add_lease(word: &AtomicU64) {
    let before = word.load(Ordering::Relaxed);
    word.swap((before & !LOW) | (before.wrapping_add(1) & LOW), Ordering::SeqCst);
}

/// Counts a lease, if a fence follows.
#[inline(always)]
fn add_lease_before_fence(word: &AtomicU64) {
    let before = word.load(Ordering::Relaxed);
    word.store((before & !LOW) | (before.wrapping_add(1) & LOW), Ordering::Release);
}

/// Counts the drop of a lease. Another thread may see it later than subsequent stores: for that
/// thread the lease only lives a little longer.
#[inline(always)]
fn add_return(word: &AtomicU64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(1 << 32), Ordering::Release);
}

/// Undoes the count of a lease, which then counts neither as taken nor as dropped.
fn subtract_lease(word: &AtomicU64) {
    let before = word.load(Ordering::Relaxed);
    word.store((before & !LOW) | (before.wrapping_sub(1) & LOW), Ordering::Release);
}

impl<K: Copy> LeaseCounts<K> {
    /// Makes the counts of a cache with that many slots.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(slots: usize) -> io::Result<LeaseCounts<K>> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let (lines, sizes) = (slots.div_ceil(IN_LINE), HintSizes::new(slots));
        let shared_counts = CounterArray::zeroed(lines)?;
        let list = Arc::new(BlockList {
            gone: AtomicBool::new(false),
            head: AtomicPtr::new(null_mut()),
            shared_counts,
            shared_lock: Mutex::new(()),
        });
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(LeaseCounts { number, slots, lines, sizes, list, keys: PhantomData })
    }

    /// Returns the calling thread's counts if it used this cache last.
    #[inline(always)]
    #[allow(unsafe_code, reason = "uses the pointer that this thread has stored")]
    pub(super) fn last_used(&self) -> Option<ThreadCounts<'_, K>> {
        let (number, lines) = LAST_USED.try_with(Cell::get).ok()?;
        if number != self.number {
            return None;
        }
        // SAFETY: beside the number of a cache, which is not 0, stand the counters that
        // find_block() has found.
        Some(ThreadCounts { counts: self, lines: unsafe { NonNull::new_unchecked(lines.cast_mut()) } })
    }

    /// Returns the calling thread's counts, or `None` if its thread-local storage is gone or there
    /// is no memory. The first call in a thread allocates, so the caller does not hold the cache's
    /// lock then.
    #[inline]
    pub(super) fn of_thread(&self) -> Option<ThreadCounts<'_, K>> {
        self.last_used().or_else(|| self.find_block())
    }

    /// Counts a lease that the calling thread takes, as [`ThreadCounts::count`] does.
    pub(super) fn count(&self, slot: CacheSlot) {
        match self.of_thread() {
            Some(own) => own.count(slot),
            None => add_lease(self.shared_count(slot).0),
        }
    }

    /// Undoes the calling thread's last count, as [`ThreadCounts::uncount`] does.
    pub(super) fn uncount(&self, slot: CacheSlot) {
        match self.of_thread() {
            Some(own) => own.uncount(slot),
            None => subtract_lease(self.shared_count(slot).0),
        }
    }

    /// Counts a lease that the calling thread drops, as [`ThreadCounts::count_return`] does.
    pub(super) fn count_return(&self, slot: CacheSlot) {
        match self.of_thread() {
            Some(own) => own.count_return(slot),
            None => add_return(self.shared_count(slot).0),
        }
    }

    /// Returns the counter that threads without their own ones share, and the lock of it.
    fn shared_count(&self, slot: CacheSlot) -> (&AtomicU64, MutexGuard<'_, ()>) {
        let turn = self.list.shared_lock.lock().ignore_poison();
        (&self.list.shared_counts[slot.index() / IN_LINE].0[slot.index() % IN_LINE], turn)
    }

    /// Finds the calling thread's block, or gives it one.
    #[cold]
    #[allow(unsafe_code, reason = "finds a block by a stored pointer")]
    fn find_block(&self) -> Option<ThreadCounts<'_, K>> {
        let block = HELD_BLOCKS.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(held) = held.iter().find(|h| h.number == self.number) {
                return Some(held.block);
            }
            // Blocks of caches that have been dropped.
            held.retain(|h| !h.list.gone.load(Ordering::Relaxed));
            let block = self.adopt()?;
            held.push(HeldBlock { number: self.number, block, list: self.list.clone() });
            Some(block)
        });
        // SAFETY: the list owns the block.
        let lines = unsafe { block.ok()??.as_ref() }.lines.as_ptr();
        let _ = LAST_USED.try_with(|last| last.set((self.number, lines)));
        Some(ThreadCounts { counts: self, lines: NonNull::new(lines.cast_mut())? })
    }

    /// Returns a block that an ended thread has left, or a new one; `None` if there is no memory.
    #[allow(unsafe_code, reason = "puts a new block into a list of raw pointers")]
    fn adopt(&self) -> Option<NonNull<ThreadBlock>> {
        let free = self
            .blocks()
            .find(|b| b.in_use.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
        if let Some(block) = free {
            return Some(NonNull::from(block));
        }
        let hints = self.pairs_size() + self.sizes.buckets * size_of::<OverflowBucket>();
        let hints = hints.div_ceil(size_of::<[u64; IN_LINE]>());
        let behind = if cfg!(all(test, loom)) { 0 } else { hints };
        let fresh = Box::new(ThreadBlock {
            lines: CounterArray::zeroed(self.lines + behind).ok()?.zero_in_children(),
            #[cfg(all(test, loom))]
            hints: hostbuf_os::array::Array::zeroed(hints).ok()?,
            in_use: AtomicBool::new(true),
            next: AtomicPtr::new(null_mut()),
        });
        let fresh = NonNull::from(Box::leak(fresh));
        let mut head = self.list.head.load(Ordering::Acquire);
        loop {
            // SAFETY: no other thread knows the block yet.
            unsafe { fresh.as_ref() }.next.store(head, Ordering::Relaxed);
            match self.list.head.compare_exchange(head, fresh.as_ptr(), Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Some(fresh),
                Err(other) => head = other,
            }
        }
    }

    /// Returns the number of bytes of a thread's pairs.
    const fn pairs_size(&self) -> usize {
        const {
            assert!(
                align_of::<HintPair<K>>() <= align_of::<CounterLine>(),
                "keys are aligned to a cache line at most"
            );
        };
        self.sizes.pairs * size_of::<HintPair<K>>()
    }

    /// Removes all threads' primary hints of a slot, including those that a thread has found and
    /// not validated yet.
    #[cold]
    pub(super) fn remove_hints(&self, slot: CacheSlot) {
        for block in self.blocks() {
            let own = ThreadCounts { counts: self, lines: NonNull::from(&*block.lines).cast() };
            (0..self.sizes.pairs).for_each(|number| own.pair(number).remove(slot));
        }
    }

    /// Returns the blocks of all threads.
    #[allow(unsafe_code, reason = "follows a list of raw pointers")]
    fn blocks(&self) -> impl Iterator<Item = &ThreadBlock> {
        // SAFETY: the list owns the blocks, and never removes one.
        let at = |p: *mut ThreadBlock| unsafe { p.as_ref() };
        std::iter::successors(at(self.list.head.load(Ordering::SeqCst)), move |b| {
            at(b.next.load(Ordering::Acquire))
        })
    }

    /// Returns the leases of a slot that have been taken and dropped, each modulo 2^32.
    pub(super) fn sum(&self, slot: CacheSlot) -> (u32, u32) {
        let shared_count = &self.list.shared_counts[slot.index() / IN_LINE].0[slot.index() % IN_LINE];
        let counts = self.blocks().map(|b| b.counter(slot)).chain([shared_count]);
        let halves = counts.map(|w| w.load(Ordering::SeqCst)).map(|w| ((w & LOW) as u32, (w >> 32) as u32));
        halves.fold((0, 0), |(taken, dropped), (t, d)| (taken.wrapping_add(t), dropped.wrapping_add(d)))
    }

    /// Returns the number of leases of a slot.
    pub(super) fn leases(&self, slot: CacheSlot) -> u32 {
        let (taken, dropped) = self.sum(slot);
        taken.wrapping_sub(dropped)
    }
}

#[cfg(test)]
mod tests;
