//! What each thread has of a cache for itself: how many leases of each slot, counted without a shared line being written,
//! and its guesses.
//!
//! Each thread has one word for each slot: takings in the low half, drops in the high half. A lease may be dropped by
//! another thread than took it, so only the sum over all threads means something: takings minus drops. Whoever wants to
//! end a registration first marks its slot, then sums; whoever takes a lease first counts it, then looks at the mark. Both
//! do it in one order that all threads agree on, so one of the two notices the other (Dekker's algorithm).
//!
//! A forked child finds all of it zero: so it has no guesses, and no hits, without being asked whether it is a child.
//!
//! A thread that ends leaves its counts to the next one that comes: they go on counting.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::hints::{self, FoundHint, Hint, HintPair, HintSizes, OverflowBucket};
use super::sync::{Array, AtomicBool, AtomicPtr, AtomicU64, Mutex, MutexGuard, thread_local};
#[cfg(not(all(test, loom)))]
use crate::os::array::Zero;
use crate::register::poison::IgnorePoison;

const LOW: u64 = 0xffff_ffff;
const IN_LINE: usize = 8;

#[repr(C, align(64))]
struct CounterLine([AtomicU64; IN_LINE]);

// SAFETY: numbers.
#[cfg(not(all(test, loom)))]
#[allow(unsafe_code)]
unsafe impl Zero for CounterLine {}

#[cfg(all(test, loom))]
impl Default for CounterLine {
    fn default() -> CounterLine {
        CounterLine(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

#[cfg(all(test, loom))]
#[repr(C, align(64))]
struct HintLine([std::sync::atomic::AtomicU64; IN_LINE]);

// SAFETY: numbers.
#[cfg(all(test, loom))]
#[allow(unsafe_code)]
unsafe impl crate::os::array::Zero for HintLine {}

/// What one thread has for itself: a word for each slot, and behind them its guesses, the pairs and the buckets.
struct ThreadBlock {
    lines: Array<CounterLine>,
    /// loom's counts are more than numbers, and nothing else can lie where they could: it has the guesses here.
    #[cfg(all(test, loom))]
    hints: crate::os::array::Array<HintLine>,
    in_use: AtomicBool,
    next: AtomicPtr<ThreadBlock>,
}

impl ThreadBlock {
    fn word(&self, slot: u32) -> &AtomicU64 {
        &self.lines[slot as usize / IN_LINE].0[slot as usize % IN_LINE]
    }
}

/// All threads' words of one cache, and their guesses with copies of its keys.
pub(super) struct LeaseCounts<K> {
    number: u64,
    slots: usize,
    /// How many lines of a block are counts.
    lines: usize,
    sizes: HintSizes,
    /// A list that only grows, and goes with the last who uses it.
    list: Arc<BlockList>,
    keys: PhantomData<fn(K) -> K>,
}

struct BlockList {
    /// The cache is: threads that have their counts still can forget them.
    gone: AtomicBool,
    head: AtomicPtr<ThreadBlock>,
    /// For threads whose own storage is gone already.
    shared_counts: Array<CounterLine>,
    shared_lock: Mutex<()>,
}

impl Drop for BlockList {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let mut at = self.head.load(Ordering::Relaxed);
        while !at.is_null() {
            // SAFETY: each came from Box::into_raw in adopt(), and nobody else has the list any more.
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
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // Whoever asks again while this thread ends has no lines any more: another thread may have them next.
        let _ = LAST_USED.try_with(|last| last.set((0, std::ptr::null())));
        // SAFETY: the list, which this holds, has the block.
        unsafe { self.block.as_ref() }.in_use.store(false, Ordering::Release);
    }
}

thread_local! {
    /// The cache that this thread used last, and its lines of it.
    static LAST_USED: Cell<(u64, *const CounterLine)> = const { Cell::new((0, std::ptr::null())) };
    static HELD_BLOCKS: RefCell<Vec<HeldBlock>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's part of a cache's counts.
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

#[allow(unsafe_code)]
impl<'a, K: Copy> ThreadCounts<'a, K> {
    /// Counts a lease of `slot` taken by this thread, before anything that comes later in program order.
    #[inline(always)]
    pub(super) fn count(self, slot: u32) {
        add_lease(self.word(slot));
    }

    /// Counts a lease of `slot`, as [`take`](ThreadCounts::count) does when a fence follows.
    #[inline(always)]
    pub(super) fn count_before_fence(self, slot: u32) {
        add_lease_before_fence(self.word(slot));
    }

    /// Counts one dropped, after all that came before in program order.
    #[inline(always)]
    pub(super) fn count_return(self, slot: u32) {
        add_return(self.word(slot));
    }

    /// Takes back what this thread has just counted, since there was nothing to lease.
    #[cold]
    pub(super) fn uncount(self, slot: u32) {
        subtract_lease(self.word(slot));
    }

    #[inline(always)]
    fn word(&self, slot: u32) -> &AtomicU64 {
        debug_assert!((slot as usize) < self.counts.slots);
        // SAFETY: `lines` begin with this thread's `slots` counts, and live as long as the list.
        unsafe { self.lines.cast::<AtomicU64>().add(slot as usize).as_ref() }
    }

    /// The slot that covers `page`, as far as this thread remembers at once.
    #[inline(always)]
    pub(super) fn primary_hint(&self, page: usize) -> Option<FoundHint<'a, K>> {
        let place = self.counts.sizes.place(page);
        // SAFETY: `lines` are this thread's.
        unsafe { self.pair(place.pair).find(place) }
    }

    /// Others that may.
    pub(super) fn overflow_hints(&self, page: usize) -> impl Iterator<Item = u32> + use<'a, K> {
        let place = self.counts.sizes.place(page);
        self.bucket(place.bucket(self.counts.sizes)).slots_for(place)
    }

    /// Remembers what covers `page` as a first guess, if there is a place that is free, or `wrong` by now.
    pub(super) fn promote_hint(&self, page: usize, hint: Hint<K>, wrong: impl Fn(u32, u32) -> bool) {
        let place = self.counts.sizes.place(page);
        // SAFETY: `lines` are this thread's.
        unsafe { self.pair(place.pair).store(place, hint, false, wrong) };
    }

    /// Remembers what covers `page`, in place of nothing, or of what is `wrong` by now (a slot and its number) or of a slot that
    /// covers another page if there is such a one.
    pub(super) fn store_hint(
        &self,
        page: usize,
        hint: Hint<K>,
        wrong: impl Fn(u32, u32) -> bool,
        elsewhere: impl Fn(u32) -> bool,
    ) {
        debug_assert!((hint.slot as usize) < self.counts.slots);
        let place = self.counts.sizes.place(page);
        let bucket = self.bucket(place.bucket(self.counts.sizes));
        // SAFETY: `lines` are this thread's.
        unsafe { hints::store(self.pair(place.pair), bucket, place, hint, wrong, elsewhere) };
    }

    #[inline(always)]
    fn pair(&self, number: usize) -> &'a HintPair<K> {
        debug_assert!(number < self.counts.sizes.pairs);
        // SAFETY: the guesses begin with so many pairs, and nothing else uses their room.
        unsafe { self.hints().cast::<HintPair<K>>().add(number).as_ref() }
    }

    fn bucket(&self, number: usize) -> &'a OverflowBucket {
        debug_assert!(number < self.counts.sizes.buckets);
        // SAFETY: behind those are so many buckets, of half a line each, and nothing else uses them.
        unsafe {
            self.hints().byte_add(self.counts.pairs_size()).cast::<OverflowBucket>().add(number).as_ref()
        }
    }

    #[cfg(not(all(test, loom)))]
    #[inline(always)]
    fn hints(&self) -> NonNull<u8> {
        // SAFETY: they lie behind the lines of counts.
        unsafe { self.lines.add(self.counts.lines) }.cast()
    }

    #[cfg(all(test, loom))]
    fn hints(&self) -> NonNull<u8> {
        let own = self.counts.blocks().find(|block| block.lines.as_ptr() == self.lines.as_ptr().cast_const());
        NonNull::from(&own.expect("a block of this cache").hints[0]).cast()
    }
}

/// Only one thread writes a word, so nothing is lost between the load and the swap; the swap is in the one order.
#[inline(always)]
fn add_lease(word: &AtomicU64) {
    let before = word.load(Ordering::Relaxed);
    word.swap((before & !LOW) | (before.wrapping_add(1) & LOW), Ordering::SeqCst);
}

#[inline(always)]
fn add_lease_before_fence(word: &AtomicU64) {
    let before = word.load(Ordering::Relaxed);
    word.store((before & !LOW) | (before.wrapping_add(1) & LOW), Ordering::Release);
}

/// Others may see it a moment later than what comes after: to them the lease only lives a little longer.
#[inline(always)]
fn add_return(word: &AtomicU64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(1 << 32), Ordering::Release);
}

/// As if it had not been taken: it counts neither as taken nor as dropped.
fn subtract_lease(word: &AtomicU64) {
    let before = word.load(Ordering::Relaxed);
    word.store((before & !LOW) | (before.wrapping_sub(1) & LOW), Ordering::Release);
}

impl<K: Copy> LeaseCounts<K> {
    /// For so many slots.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(slots: usize) -> io::Result<LeaseCounts<K>> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let (lines, sizes) = (slots.div_ceil(IN_LINE), HintSizes::new(slots));
        let shared_counts = Array::zeroed(lines)?;
        let list = Arc::new(BlockList {
            gone: AtomicBool::new(false),
            head: AtomicPtr::new(null_mut()),
            shared_counts,
            shared_lock: Mutex::new(()),
        });
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(LeaseCounts { number, slots, lines, sizes, list, keys: PhantomData })
    }

    /// The calling thread's, if this cache is the one that it used last.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) fn last_used(&self) -> Option<ThreadCounts<'_, K>> {
        let (number, lines) = LAST_USED.try_with(Cell::get).ok()?;
        if number != self.number {
            return None;
        }
        // SAFETY: with a cache's number, of which there is no 0, stand the lines that find() has found.
        Some(ThreadCounts { counts: self, lines: unsafe { NonNull::new_unchecked(lines.cast_mut()) } })
    }

    /// The calling thread's; none for a thread whose own storage is gone, or that finds no memory for it. The first time it
    /// allocates: not to be asked for first with the cache's lock.
    #[inline]
    pub(super) fn of_thread(&self) -> Option<ThreadCounts<'_, K>> {
        self.last_used().or_else(|| self.find_block())
    }

    /// Counts a lease of `slot` that the calling thread takes; see [`ThreadCounts::count`].
    pub(super) fn count(&self, slot: u32) {
        match self.of_thread() {
            Some(own) => own.count(slot),
            None => add_lease(self.shared_count(slot).0),
        }
    }

    /// Takes back what the calling thread has just counted; see [`ThreadCounts::uncount`].
    pub(super) fn uncount(&self, slot: u32) {
        match self.of_thread() {
            Some(own) => own.uncount(slot),
            None => subtract_lease(self.shared_count(slot).0),
        }
    }

    /// Counts one that the calling thread drops; see [`ThreadCounts::count_return`].
    pub(super) fn count_return(&self, slot: u32) {
        match self.of_thread() {
            Some(own) => own.count_return(slot),
            None => add_return(self.shared_count(slot).0),
        }
    }

    /// The word that threads share that have none, while nobody else has it.
    fn shared_count(&self, slot: u32) -> (&AtomicU64, MutexGuard<'_, ()>) {
        let turn = self.list.shared_lock.lock().ignore_poison();
        (&self.list.shared_counts[slot as usize / IN_LINE].0[slot as usize % IN_LINE], turn)
    }

    #[cold]
    #[allow(unsafe_code)]
    fn find_block(&self) -> Option<ThreadCounts<'_, K>> {
        let block = HELD_BLOCKS.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(held) = held.iter().find(|h| h.number == self.number) {
                return Some(held.block);
            }
            // Those of caches that are gone.
            held.retain(|h| !h.list.gone.load(Ordering::Relaxed));
            let block = self.adopt()?;
            held.push(HeldBlock { number: self.number, block, list: self.list.clone() });
            Some(block)
        });
        // SAFETY: the list has the block.
        let lines = unsafe { block.ok()??.as_ref() }.lines.as_ptr();
        let _ = LAST_USED.try_with(|last| last.set((self.number, lines)));
        Some(ThreadCounts { counts: self, lines: NonNull::new(lines.cast_mut())? })
    }

    /// A block that a thread has left, or a new one; none without memory.
    #[allow(unsafe_code)]
    fn adopt(&self) -> Option<NonNull<ThreadBlock>> {
        let free = self
            .blocks()
            .find(|b| b.in_use.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
        if let Some(block) = free {
            return Some(NonNull::from(block));
        }
        let guesses = self.pairs_size() + self.sizes.buckets * size_of::<OverflowBucket>();
        let guesses = guesses.div_ceil(size_of::<[u64; IN_LINE]>());
        let behind = if cfg!(all(test, loom)) { 0 } else { guesses };
        let fresh = Box::new(ThreadBlock {
            lines: Array::zeroed(self.lines + behind).ok()?.zero_in_children(),
            #[cfg(all(test, loom))]
            hints: crate::os::array::Array::zeroed(guesses).ok()?,
            in_use: AtomicBool::new(true),
            next: AtomicPtr::new(null_mut()),
        });
        let fresh = NonNull::from(Box::leak(fresh));
        let mut head = self.list.head.load(Ordering::Acquire);
        loop {
            // SAFETY: nobody else knows it yet.
            unsafe { fresh.as_ref() }.next.store(head, Ordering::Relaxed);
            match self.list.head.compare_exchange(head, fresh.as_ptr(), Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Some(fresh),
                Err(other) => head = other,
            }
        }
    }

    /// Bytes of a thread's pairs.
    const fn pairs_size(&self) -> usize {
        const {
            assert!(
                align_of::<HintPair<K>>() <= align_of::<CounterLine>(),
                "keys are aligned to a cache line at most"
            );
        };
        self.sizes.pairs * size_of::<HintPair<K>>()
    }

    /// No thread guesses `slot` from now on, but what it learns anew; what a thread has just found does not stand any more.
    #[cold]
    #[allow(unsafe_code)]
    pub(super) fn remove_hints(&self, slot: u32) {
        for block in self.blocks() {
            let own = ThreadCounts { counts: self, lines: NonNull::from(&*block.lines).cast() };
            (0..self.sizes.pairs).for_each(|number| own.pair(number).remove(slot));
        }
    }

    #[allow(unsafe_code)]
    fn blocks(&self) -> impl Iterator<Item = &ThreadBlock> {
        // SAFETY: blocks stay in the list as long as it lives.
        let at = |p: *mut ThreadBlock| unsafe { p.as_ref() };
        std::iter::successors(at(self.list.head.load(Ordering::SeqCst)), move |b| {
            at(b.next.load(Ordering::Acquire))
        })
    }

    /// Takings and drops of a slot, each modulo 2^32: the leases that live are their difference.
    pub(super) fn sum(&self, slot: u32) -> (u32, u32) {
        let shared_count = &self.list.shared_counts[slot as usize / IN_LINE].0[slot as usize % IN_LINE];
        let counts = self.blocks().map(|b| b.word(slot)).chain([shared_count]);
        let halves = counts.map(|w| w.load(Ordering::SeqCst)).map(|w| ((w & LOW) as u32, (w >> 32) as u32));
        halves.fold((0, 0), |(taken, given), (t, g)| (taken.wrapping_add(t), given.wrapping_add(g)))
    }

    /// How many leases of a slot live.
    pub(super) fn leases(&self, slot: u32) -> u32 {
        let (taken, given) = self.sum(slot);
        taken.wrapping_sub(given)
    }
}

#[cfg(test)]
mod tests;
