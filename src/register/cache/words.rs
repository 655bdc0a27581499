//! How many leases each slot has, counted without a shared line being written.
//!
//! Each thread has one word for each slot: takings in the low half, drops in the high half. A lease may be dropped by
//! another thread than took it, so only the sum over all threads means something: takings minus drops. Whoever wants to
//! end a registration first marks its slot, then sums; whoever takes a lease first counts it, then looks at the mark. Both
//! do it in one order that all threads agree on, so one of the two notices the other (Dekker's algorithm).
//!
//! A thread that ends leaves its words to the next one that comes: they go on counting.

use std::cell::{Cell, RefCell};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const LOW: u64 = 0xffff_ffff;

/// One thread's words.
struct Block {
    words: Box<[AtomicU64]>,
    in_use: AtomicBool,
    next: AtomicPtr<Block>,
}

/// All threads' words of one cache.
pub(super) struct Words {
    number: u64,
    slots: usize,
    /// A list that only grows, and goes with the last who uses it.
    list: Arc<List>,
}

struct List {
    head: AtomicPtr<Block>,
    /// For threads whose own storage is gone already.
    orphans: Box<[AtomicU64]>,
    orphaned: Mutex<()>,
}

impl Drop for List {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let mut at = *self.head.get_mut();
        while !at.is_null() {
            // SAFETY: each came from Box::into_raw in adopt(), and nobody else has the list any more.
            let block = unsafe { Box::from_raw(at) };
            at = block.next.load(Ordering::Relaxed);
        }
    }
}

/// A thread's hold on its block of one cache.
struct Own {
    number: u64,
    block: NonNull<Block>,
    list: Arc<List>,
}

impl Drop for Own {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let _ = &self.list;
        // SAFETY: the list, which this holds, has the block.
        unsafe { self.block.as_ref() }.in_use.store(false, Ordering::Release);
    }
}

thread_local! {
    /// The cache that this thread used last, and its words of it.
    static LAST: Cell<(u64, *const AtomicU64)> = const { Cell::new((0, std::ptr::null())) };
    static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };
}

impl Words {
    /// For so many slots.
    pub(super) fn new(slots: usize) -> Words {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let orphans = (0..slots).map(|_| AtomicU64::new(0)).collect();
        let list = Arc::new(List { head: AtomicPtr::new(null_mut()), orphans, orphaned: Mutex::new(()) });
        Words { number: NEXT.fetch_add(1, Ordering::Relaxed), slots, list }
    }

    /// Counts a lease of `slot` taken by this thread, before anything that comes later in program order.
    #[inline]
    pub(super) fn take(&self, slot: u32) {
        // Only this thread writes its word, so nothing is lost between the load and the swap; the swap is in the one order.
        self.change(slot, |word| {
            let before = word.load(Ordering::Relaxed);
            word.swap((before & !LOW) | (before.wrapping_add(1) & LOW), Ordering::SeqCst);
        });
    }

    /// Counts one dropped, after all that came before in program order. Others may see it a moment later than what comes
    /// after: to them the lease only lives a little longer.
    #[inline]
    pub(super) fn give(&self, slot: u32) {
        self.change(slot, |word| {
            word.store(word.load(Ordering::Relaxed).wrapping_add(1 << 32), Ordering::Release);
        });
    }

    #[inline]
    #[allow(unsafe_code)]
    fn change(&self, slot: u32, change: impl Fn(&AtomicU64)) {
        debug_assert!((slot as usize) < self.slots);
        let last = LAST.try_with(Cell::get).unwrap_or((0, std::ptr::null()));
        let words = if last.0 == self.number { last.1 } else { self.words_of_this_thread() };
        if words.is_null() {
            // Several threads may come here; they take turns.
            let _turn = self.list.orphaned.lock().unwrap_or_else(PoisonError::into_inner);
            return change(&self.list.orphans[slot as usize]);
        }
        // SAFETY: `words` are this thread's `slots` words, which live as long as the list.
        change(unsafe { &*words.add(slot as usize) });
    }

    #[cold]
    #[allow(unsafe_code)]
    fn words_of_this_thread(&self) -> *const AtomicU64 {
        let found = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            let block = match own.iter().find(|o| o.number == self.number) {
                Some(o) => o.block,
                None => {
                    // Those of caches that are gone.
                    own.retain(|o| Arc::strong_count(&o.list) > 1);
                    let block = self.adopt();
                    own.push(Own { number: self.number, block, list: self.list.clone() });
                    block
                }
            };
            // SAFETY: the list has the block.
            unsafe { block.as_ref() }.words.as_ptr()
        });
        let words = found.unwrap_or(std::ptr::null());
        if !words.is_null() {
            let _ = LAST.try_with(|last| last.set((self.number, words)));
        }
        words
    }

    /// A block that a thread has left, or a new one.
    #[allow(unsafe_code)]
    fn adopt(&self) -> NonNull<Block> {
        let free = self
            .blocks()
            .find(|b| b.in_use.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
        if let Some(block) = free {
            return NonNull::from(block);
        }
        let words = (0..self.slots).map(|_| AtomicU64::new(0)).collect();
        let fresh =
            Box::new(Block { words, in_use: AtomicBool::new(true), next: AtomicPtr::new(null_mut()) });
        let fresh = NonNull::from(Box::leak(fresh));
        let mut head = self.list.head.load(Ordering::Acquire);
        loop {
            // SAFETY: nobody else knows it yet.
            unsafe { fresh.as_ref() }.next.store(head, Ordering::Relaxed);
            match self.list.head.compare_exchange(head, fresh.as_ptr(), Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return fresh,
                Err(other) => head = other,
            }
        }
    }

    #[allow(unsafe_code)]
    fn blocks(&self) -> impl Iterator<Item = &Block> {
        // SAFETY: blocks stay in the list as long as it lives.
        let at = |p: *mut Block| unsafe { p.as_ref() };
        std::iter::successors(at(self.list.head.load(Ordering::SeqCst)), move |b| {
            at(b.next.load(Ordering::Acquire))
        })
    }

    /// Takings and drops of a slot, each modulo 2^32: the leases that live are their difference.
    pub(super) fn sum(&self, slot: u32) -> (u32, u32) {
        let slot = slot as usize;
        let words = self.blocks().map(|b| &b.words[slot]).chain([&self.list.orphans[slot]]);
        let halves = words.map(|w| w.load(Ordering::SeqCst)).map(|w| ((w & LOW) as u32, (w >> 32) as u32));
        halves.fold((0, 0), |(taken, given), (t, g)| (taken.wrapping_add(t), given.wrapping_add(g)))
    }

    /// How many leases of a slot live.
    pub(super) fn leases(&self, slot: u32) -> u32 {
        let (taken, given) = self.sum(slot);
        taken.wrapping_sub(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_counted_across_threads_that_come_and_go() {
        let words = Words::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| words.take(1)));
            }
        });
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..1000).for_each(|_| words.give(1)));
            }
        });
        assert_eq!((words.leases(0), words.leases(1), words.leases(2)), (0, 1000, 0));
        assert_eq!(words.sum(1), (4000, 3000));
        // Threads one after another share one block.
        for _ in 0..50 {
            std::thread::scope(|scope| drop(scope.spawn(|| words.take(2))));
        }
        assert!(words.blocks().count() <= 4, "{}", words.blocks().count());
    }

    #[test]
    fn halves_wrap_without_touching_each_other() {
        let words = Words::new(1);
        words.change(0, |word| word.store(0xffff_fffe | 0xffff_fff0 << 32, Ordering::Relaxed));
        assert_eq!(words.leases(0), 14);
        words.take(0);
        words.take(0);
        assert_eq!((words.leases(0), words.sum(0)), (16, (0, 0xffff_fff0)));
        (0..16).for_each(|_| words.give(0));
        assert_eq!((words.leases(0), words.sum(0)), (0, (0, 0)));
    }

    #[test]
    fn several_caches_in_one_thread_do_not_mix() {
        let (a, b) = (Words::new(1), Words::new(1));
        for _ in 0..10 {
            a.take(0);
            b.take(0);
            b.give(0);
        }
        assert_eq!((a.leases(0), b.leases(0)), (10, 0));
        drop(a);
        let c = Words::new(1);
        c.take(0);
        assert_eq!((b.leases(0), c.leases(0)), (0, 1));
    }
}
