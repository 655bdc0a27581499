//! An ordered table of ranges in blocks, in which readers find a registration without a lock.
//!
//! Writers hold the cache's lock. Readers compare a sequence number before and after, as with a
//! seqlock, and every field is an atomic, so a torn read is detected and never undefined behaviour.
//! All memory is allocated at construction: a writer must not allocate, since it holds the lock
//! that the monitor needs while another thread may be inside `free`.
//!
//! ```text
//!   first   [ 0x1000 | 0x9000 | 0x40000 ]           the first start of each block, sorted
//!   order   [ block 2 | block 0 | block 5 ]
//!   block   starts, ends, slots, each 64 long, sorted by start; the greatest end of all
//! ```

use std::sync::atomic::Ordering;

use super::cache_slot::CacheSlot;
use super::sync::{AtomicU32, AtomicUsize, fence, spin_loop};
use crate::span::Span;

/// The number of entries of a block.
const WIDTH: usize = if MODEL { 4 } else { 64 };
/// The largest number of entries of two neighbouring blocks that are merged, so that blocks are at
/// least a quarter full on average.
const MERGE: usize = if MODEL { 2 } else { 40 };
/// The slot of an unused entry.
const NO_SLOT: CacheSlot = CacheSlot::new(u32::MAX);
/// The number of attempts of a reader while writers change the table. Then the request takes the
/// lock.
const ATTEMPTS: usize = if MODEL { 2 } else { 16 };
/// True under loom, with sizes that are small enough for every interleaving.
const MODEL: bool = cfg!(all(test, loom));

/// A block of entries, sorted by start.
struct RangeBlock {
    count: AtomicUsize,
    greatest_end: AtomicUsize,
    starts: [AtomicUsize; WIDTH],
    ends: [AtomicUsize; WIDTH],
    slots: [AtomicU32; WIDTH],
}

impl RangeBlock {
    fn new() -> RangeBlock {
        RangeBlock {
            count: AtomicUsize::new(0),
            greatest_end: AtomicUsize::new(0),
            starts: std::array::from_fn(|_| AtomicUsize::new(0)),
            ends: std::array::from_fn(|_| AtomicUsize::new(0)),
            slots: std::array::from_fn(|_| AtomicU32::new(NO_SLOT.number())),
        }
    }

    fn copy_entry(&self, at: usize, from: &RangeBlock, other: usize) {
        self.starts[at].store(get(&from.starts[other]), Ordering::Relaxed);
        self.ends[at].store(get(&from.ends[other]), Ordering::Relaxed);
        self.slots[at].store(from.slots[other].load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn set(&self, at: usize, span: Span, slot: CacheSlot) {
        self.starts[at].store(span.start(), Ordering::Relaxed);
        self.ends[at].store(span.end(), Ordering::Relaxed);
        self.slots[at].store(slot.number(), Ordering::Relaxed);
    }

    #[inline]
    fn slot(&self, at: usize) -> CacheSlot {
        CacheSlot::new(self.slots[at].load(Ordering::Relaxed))
    }

    fn resize(&self, count: usize) {
        self.count.store(count, Ordering::Relaxed);
        let greatest = self.ends[..count].iter().map(get).max().unwrap_or(0);
        self.greatest_end.store(greatest, Ordering::Relaxed);
    }
}

#[inline]
fn get(word: &AtomicUsize) -> usize {
    word.load(Ordering::Relaxed)
}

/// The table of ranges. The caller of a method that changes it holds the cache's lock.
pub(super) struct RangeTable {
    sequence: AtomicUsize,
    /// The number of blocks in use.
    count: AtomicUsize,
    first: Box<[AtomicUsize]>,
    order: Box<[AtomicU32]>,
    blocks: Box<[RangeBlock]>,
}

/// The result of a search without the lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The range of this slot covered the request at the time of the search.
    Slot(CacheSlot),
    /// No range covered the request at the time of the search.
    Nothing,
    /// Writers changed the table during all attempts.
    Changed,
}

impl RangeTable {
    /// Makes a table for at most `entries` entries.
    pub(super) fn new(entries: usize) -> RangeTable {
        let blocks = entries / (MERGE / 2) + 3;
        RangeTable {
            sequence: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            first: (0..blocks).map(|_| AtomicUsize::new(0)).collect(),
            order: (0..blocks as u32).map(AtomicU32::new).collect(),
            blocks: (0..blocks).map(|_| RangeBlock::new()).collect(),
        }
    }

    /// Finds a slot whose range covers `span` and that `fits` accepts, without the lock.
    pub(super) fn find(&self, span: Span, fits: impl Fn(CacheSlot) -> bool) -> Lookup {
        for _ in 0..ATTEMPTS {
            let before = self.sequence.load(Ordering::Acquire);
            if before % 2 == 1 {
                spin_loop();
                continue;
            }
            let found = self.find_locked(span, &fits);
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == before {
                return found.map_or(Lookup::Nothing, Lookup::Slot);
            }
        }
        Lookup::Changed
    }

    /// Finds a slot as [`find`](RangeTable::find) does. The caller holds the lock, or checks
    /// afterwards that the table has not changed.
    pub(super) fn find_locked(&self, span: Span, fits: &impl Fn(CacheSlot) -> bool) -> Option<CacheSlot> {
        let count = get(&self.count).min(self.order.len());
        // A block that begins behind the start cannot contain the range, and the last one before it
        // is the likeliest.
        let mut at = self.first[..count].partition_point(|first| get(first) <= span.start());
        while at > 0 {
            at -= 1;
            let block = self.block(at)?;
            if get(&block.greatest_end) < span.end() {
                continue;
            }
            let entries = get(&block.count).min(WIDTH);
            let mut entry = block.starts[..entries].partition_point(|start| get(start) <= span.start());
            while entry > 0 {
                entry -= 1;
                let slot = block.slot(entry);
                if get(&block.ends[entry]) >= span.end() && slot != NO_SLOT && fits(slot) {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Passes each slot whose range overlaps `span`. The caller holds the lock, and `each` must not
    /// change the table.
    pub(super) fn overlapping(&self, span: Span, mut each: impl FnMut(CacheSlot)) {
        self.find_overlapping(span, |slot| {
            each(slot);
            false
        });
    }

    /// Finds any slot whose range overlaps `span` and that is `wanted`. The caller holds the lock.
    pub(super) fn find_overlapping(
        &self,
        span: Span,
        mut wanted: impl FnMut(CacheSlot) -> bool,
    ) -> Option<CacheSlot> {
        let count = get(&self.count);
        let mut at = self.first[..count].partition_point(|first| get(first) < span.end());
        while at > 0 {
            at -= 1;
            let block = self.block(at)?;
            if get(&block.greatest_end) <= span.start() {
                continue;
            }
            for entry in 0..get(&block.count) {
                let slot = block.slot(entry);
                let overlaps =
                    get(&block.starts[entry]) < span.end() && get(&block.ends[entry]) > span.start();
                if overlaps && wanted(slot) {
                    return Some(slot);
                }
            }
        }
        None
    }

    #[inline]
    fn block(&self, at: usize) -> Option<&RangeBlock> {
        self.blocks.get(self.order.get(at)?.load(Ordering::Relaxed) as usize)
    }

    /// Changes the table, so that concurrent readers begin again.
    fn change(&self, change: impl FnOnce()) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.sequence.fetch_add(1, Ordering::Release);
    }

    /// Adds an entry. The caller holds the lock.
    ///
    /// # Panics
    /// With more entries than the table was made for.
    pub(super) fn insert(&self, span: Span, slot: CacheSlot) {
        self.change(|| {
            if get(&self.count) == 0 {
                self.add_block(0, span.start());
            }
            let mut at = self.block_for(span);
            if get(&self.blocks_at(at).count) == WIDTH {
                self.split(at);
                at = self.block_for(span);
            }
            let block = self.blocks_at(at);
            let count = get(&block.count);
            let entry = block.starts[..count].partition_point(|start| get(start) <= span.start());
            for other in (entry..count).rev() {
                block.copy_entry(other + 1, block, other);
            }
            block.set(entry, span, slot);
            block.resize(count + 1);
            self.first[at].store(get(&block.starts[0]), Ordering::Relaxed);
        });
    }

    /// Removes an entry. The caller holds the lock.
    pub(super) fn remove(&self, span: Span, slot: CacheSlot) {
        let Some((at, entry)) = self.position_of(span, slot) else { return };
        self.change(|| {
            let block = self.blocks_at(at);
            let count = get(&block.count);
            for other in entry + 1..count {
                block.copy_entry(other - 1, block, other);
            }
            block.resize(count - 1);
            if count == 1 {
                self.remove_block(at);
                return;
            }
            self.first[at].store(get(&block.starts[0]), Ordering::Relaxed);
            let with_next = at + 1 < get(&self.count);
            for at in [at.checked_sub(1), with_next.then_some(at)].into_iter().flatten() {
                if get(&self.blocks_at(at).count) + get(&self.blocks_at(at + 1).count) <= MERGE {
                    self.merge(at);
                    break;
                }
            }
        });
    }

    /// Returns the block at a position below the count.
    fn blocks_at(&self, at: usize) -> &RangeBlock {
        self.block(at).expect("a position below the count")
    }

    /// Returns the position of the block for an entry.
    fn block_for(&self, span: Span) -> usize {
        let count = get(&self.count);
        self.first[..count].partition_point(|first| get(first) <= span.start()).saturating_sub(1)
    }

    /// Returns the position of the block and of the entry. Entries with the same start may span
    /// several blocks.
    fn position_of(&self, span: Span, slot: CacheSlot) -> Option<(usize, usize)> {
        let last = self.block_for(span);
        (0..=last).rev().find_map(|at| {
            let block = self.block(at).filter(|_| at < get(&self.count))?;
            let entry = (0..get(&block.count))
                .find(|&entry| block.slot(entry) == slot && get(&block.starts[entry]) == span.start())?;
            Some((at, entry))
        })
    }

    /// Inserts an unused block at the position `at`. The unused blocks are those behind the count
    /// in `order`.
    fn add_block(&self, at: usize, first: usize) {
        let count = get(&self.count);
        assert!(count < self.order.len(), "the table was made for fewer entries");
        let fresh = self.order[count].load(Ordering::Relaxed);
        for other in (at..count).rev() {
            self.order[other + 1].store(self.order[other].load(Ordering::Relaxed), Ordering::Relaxed);
            self.first[other + 1].store(get(&self.first[other]), Ordering::Relaxed);
        }
        self.order[at].store(fresh, Ordering::Relaxed);
        self.first[at].store(first, Ordering::Relaxed);
        self.blocks[fresh as usize].resize(0);
        self.count.store(count + 1, Ordering::Relaxed);
    }

    /// Removes the block at a position.
    fn remove_block(&self, at: usize) {
        let count = get(&self.count);
        let unused = self.order[at].load(Ordering::Relaxed);
        for other in at + 1..count {
            self.order[other - 1].store(self.order[other].load(Ordering::Relaxed), Ordering::Relaxed);
            self.first[other - 1].store(get(&self.first[other]), Ordering::Relaxed);
        }
        self.order[count - 1].store(unused, Ordering::Relaxed);
        self.count.store(count - 1, Ordering::Relaxed);
    }

    /// Moves half of the entries of a block to a new one behind it.
    fn split(&self, at: usize) {
        let half = WIDTH / 2;
        let first = get(&self.blocks_at(at).starts[half]);
        self.add_block(at + 1, first);
        let (low, high) = (self.blocks_at(at), self.blocks_at(at + 1));
        for entry in half..WIDTH {
            high.copy_entry(entry - half, low, entry);
        }
        high.resize(WIDTH - half);
        low.resize(half);
    }

    /// Moves the entries of the next block to a block.
    fn merge(&self, at: usize) {
        let (low, high) = (self.blocks_at(at), self.blocks_at(at + 1));
        let (count, more) = (get(&low.count), get(&high.count));
        for entry in 0..more {
            low.copy_entry(count + entry, high, entry);
        }
        low.resize(count + more);
        high.resize(0);
        self.remove_block(at + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: usize, length: usize) -> Span {
        Span::new(start, length).unwrap()
    }

    proptest! {
        /// Compares the table with a list that is searched from end to end.
        #[test]
        fn lookups_agree_with_a_list(
            steps in proptest::collection::vec((any::<bool>(), 1usize..600, 1usize..40), 1..400),
            asked in proptest::collection::vec((1usize..600, 1usize..40), 20),
        ) {
            let table = RangeTable::new(400);
            let mut list: Vec<(Span, CacheSlot)> = Vec::new();
            for (i, (add, start, length)) in steps.into_iter().enumerate() {
                if add || list.is_empty() {
                    list.push((span(start, length), CacheSlot::from_index(i)));
                    table.insert(span(start, length), CacheSlot::from_index(i));
                } else {
                    let (span, slot) = list.swap_remove(start % list.len());
                    table.remove(span, slot);
                }
            }
            for (start, length) in asked {
                let asked = span(start, length);
                let covers = |slot: CacheSlot| list.iter().any(|(s, n)| *n == slot && s.contains(asked));
                match table.find(asked, |_| true) {
                    Lookup::Slot(slot) => prop_assert!(covers(slot)),
                    Lookup::Nothing => prop_assert!(!list.iter().any(|(s, _)| s.contains(asked))),
                    Lookup::Changed => prop_assert!(false, "no other thread changes the table"),
                }
                let mut seen = Vec::new();
                table.overlapping(asked, |slot| seen.push(slot));
                seen.sort_unstable();
                let mut expected: Vec<CacheSlot> =
                    list.iter().filter(|(s, _)| s.overlaps(asked)).map(|(_, n)| *n).collect();
                expected.sort_unstable();
                prop_assert_eq!(seen, expected);
            }
        }
    }

    #[test]
    fn the_table_holds_its_capacity_in_any_order() {
        for step in [1usize, 7919, 4999] {
            let table = RangeTable::new(10_000);
            for i in 0..10_000 {
                let n = i * step % 10_000;
                table.insert(span((n + 1) << 12, 4096), CacheSlot::from_index(n));
            }
            for n in 0..10_000 {
                assert_eq!(
                    table.find(span(((n + 1) << 12) + 5, 7), |_| true),
                    Lookup::Slot(CacheSlot::from_index(n))
                );
            }
            // Even removal leaves blocks with few entries; then entries are added elsewhere.
            for n in (0..10_000).filter(|n| n % 37 != 0) {
                table.remove(span((n + 1) << 12, 4096), CacheSlot::from_index(n));
            }
            for n in (0..10_000).filter(|n| n % 37 != 0) {
                table.insert(span((n + 20_001) << 12, 4096), CacheSlot::from_index(n));
            }
            assert_eq!(table.find(span((37 + 1) << 12, 1), |_| true), Lookup::Slot(CacheSlot::new(37)));
            assert_eq!(table.find(span((38 + 1) << 12, 1), |_| true), Lookup::Nothing);
        }
    }

    #[test]
    fn concurrent_readers_find_only_real_entries() {
        let table = RangeTable::new(1000);
        // Entries with even numbers are always there.
        for n in (0..1000).step_by(2) {
            table.insert(span((n + 1) << 12, 4096), CacheSlot::from_index(n));
        }
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..2usize {
                let (table, stop) = (&table, &stop);
                scope.spawn(move || {
                    let mut n = seed;
                    while !stop.load(Ordering::Relaxed) {
                        n = (n * 31 + 7) % 1000;
                        match table.find(span(((n + 1) << 12) + 1, 1), |_| true) {
                            Lookup::Slot(slot) => assert_eq!(slot.index(), n),
                            Lookup::Nothing => assert_eq!(n % 2, 1),
                            Lookup::Changed => {}
                        }
                    }
                });
            }
            for round in 0..50 {
                for n in (1..1000).step_by(2).skip(round % 3) {
                    table.insert(span((n + 1) << 12, 4096), CacheSlot::from_index(n));
                }
                for n in (1..1000).step_by(2).skip(round % 3) {
                    table.remove(span((n + 1) << 12, 4096), CacheSlot::from_index(n));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
