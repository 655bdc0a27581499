//! Change sequences, with which a hit checks without a lock that it has missed no change of its
//! memory.
//!
//! Each userfaultfd has one. The monitor makes the sequence odd before it reads the descriptor's
//! events, and even when they are applied. The kernel sets its own mark, `mmap_changing`, before a
//! change and clears it when the changing thread continues, which is after the event has been read.
//!
//! ```text
//!   change:   mmap_changing + 1 ─ pages go ─ event ─┐             ┌─ mmap_changing - 1 ─ returns
//!   monitor:                              odd ── read ── apply ── even
//! ```
//!
//! A hit reads an even sequence, then a live entry, then a clear mark, and then the same sequence.
//! No change that began before the first of these reads has then made the entry stale. Each read
//! acquires what the corresponding step on the other side has released; the loom model in this
//! file's tests checks all interleavings.

use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

use super::change_mark::{ChangeMark, ChangeState};
use super::descriptor_set::{DescriptorSet, MOST_DESCRIPTORS};
use super::userfaultfd::Userfaultfd;

/// The result of checking a sequence for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unchanged {
    /// No change is in progress, and none has been applied.
    Yes,
    /// A change may be in progress, or has been applied.
    No,
    /// The calling thread does not have the descriptor, so it cannot check.
    Unknown,
}

/// A userfaultfd and the state that a hit reads. All of it lies in one cache line, since each line
/// is likely to miss after a system call. The alignment gives each sequence two lines, since
/// processors prefetch lines in pairs.
#[repr(align(128))]
pub(super) struct ChangeSequence<U = Userfaultfd> {
    sequence: AtomicU64,
    /// The number of threads that are unwatching ranges: the kernel no longer reports their
    /// changes, and caches do not know yet.
    unwatching: AtomicU32,
    /// True if the kernel's mark is reliable.
    sound: AtomicBool,
    /// True if a range that the descriptor watches is busy.
    busy: AtomicBool,
    pub(super) userfault: U,
}

impl<U: ChangeMark> ChangeSequence<U> {
    /// Makes the sequence of a userfaultfd, which counts as sound.
    pub(super) fn new(userfault: U) -> ChangeSequence<U> {
        ChangeSequence {
            sequence: AtomicU64::new(0),
            unwatching: AtomicU32::new(0),
            sound: AtomicBool::new(true),
            busy: AtomicBool::new(false),
            userfault,
        }
    }

    /// Returns a number that each change advances, and that is odd while a change is applied. Read
    /// it before the entry to be validated.
    #[inline(always)]
    pub(super) fn read(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Returns whether every change that had begun before the sequence was read as `before` had
    /// been applied by then.
    #[inline(always)]
    pub(super) fn check(&self, before: u64) -> Unchanged {
        if before % 2 == 1 {
            return Unchanged::No;
        }
        match self.userfault.state() {
            ChangeState::Quiet => {}
            ChangeState::Changing => return Unchanged::No,
            ChangeState::Unknown => return Unchanged::Unknown,
        }
        if self.unwatching.load(Ordering::Acquire) > 0 {
            return Unchanged::No;
        }
        fence(Ordering::Acquire);
        match self.sequence.load(Ordering::Relaxed) == before && self.sound.load(Ordering::Relaxed) {
            true => Unchanged::Yes,
            false => Unchanged::No,
        }
    }

    /// Returns whether [`check`](ChangeSequence::check) returns [`Unchanged::Yes`].
    #[inline(always)]
    pub(super) fn unchanged_since(&self, before: u64) -> bool {
        self.check(before) == Unchanged::Yes
    }

    /// Marks the beginning of applying a change, before its event is read, or the end of it.
    /// Callers hold a lock.
    pub(super) fn step(&self) {
        self.sequence.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes all checks fail until [`end_unwatching`](ChangeSequence::end_unwatching): from before
    /// the kernel stops reporting changes of a range until caches know.
    pub(super) fn begin_unwatching(&self) {
        self.unwatching.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends one [`begin_unwatching`](ChangeSequence::begin_unwatching).
    pub(super) fn end_unwatching(&self) {
        self.unwatching.fetch_sub(1, Ordering::Release);
    }

    /// Returns whether a thread is unwatching ranges.
    pub(super) fn is_unwatching(&self) -> bool {
        self.unwatching.load(Ordering::Acquire) > 0
    }

    /// Returns whether the kernel's mark counts as reliable.
    pub(super) fn is_sound(&self) -> bool {
        self.sound.load(Ordering::Relaxed)
    }

    /// Returns whether a range that the descriptor watches is busy.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Records whether a range that the descriptor watches is busy.
    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Marks the descriptor as sound, and returns whether it was unsound.
    pub(super) fn mark_sound(&self) -> bool {
        !self.sound.swap(true, Ordering::Relaxed)
    }

    /// Marks the descriptor as unsound, so that all checks fail, and returns whether it was sound.
    pub(super) fn mark_unsound(&self) -> bool {
        self.sound.swap(false, Ordering::Relaxed)
    }
}

/// The change sequences of a monitor.
pub(super) struct ChangeSequences(Box<[ChangeSequence]>);

impl ChangeSequences {
    /// Makes the sequences of one monitor's userfaultfds.
    pub(super) fn new(userfaults: Vec<Userfaultfd>) -> ChangeSequences {
        assert!((1..=MOST_DESCRIPTORS).contains(&userfaults.len()));
        ChangeSequences(userfaults.into_iter().map(ChangeSequence::new).collect())
    }

    /// Returns the set of all descriptors.
    pub(super) fn all(&self) -> DescriptorSet {
        DescriptorSet::first(self.0.len())
    }

    /// Returns the sequence of the descriptor `number`.
    #[inline(always)]
    pub(super) fn of(&self, number: usize) -> &ChangeSequence {
        &self.0[number]
    }

    /// Returns the sequences of the descriptors in `set`.
    pub(super) fn in_set(&self, set: DescriptorSet) -> impl Iterator<Item = &ChangeSequence> {
        set.iter().map(|number| &self.0[number])
    }

    /// Returns the sequences of `set` as one number: each change advances it, and it is odd while a
    /// change is applied.
    #[inline(always)]
    pub(super) fn read(&self, set: DescriptorSet) -> u64 {
        let (mut sum, mut odd) = (0u64, 0);
        for number in set.iter() {
            let one = self.of(number).read();
            sum = sum.wrapping_add(one);
            odd |= one & 1;
        }
        (sum & !1) | odd
    }

    /// Returns whether every change of memory that `set` watches and that had begun before
    /// [`read`](ChangeSequences::read) returned `before` had been applied by then.
    #[inline(always)]
    pub(super) fn unchanged_since(&self, set: DescriptorSet, before: u64) -> bool {
        if set.bits().is_power_of_two() {
            return self.of(set.bits().trailing_zeros() as usize).unchanged_since(before);
        }
        // Sequences only grow, so an unchanged sum means that each of them is unchanged.
        before.is_multiple_of(2)
            && set.iter().all(|number| {
                let one = self.of(number);
                one.unchanged_since(one.read())
            })
            && self.read(set) == before
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Quiet;

    impl ChangeMark for Quiet {
        fn state(&self) -> ChangeState {
            ChangeState::Quiet
        }
    }

    #[test]
    fn nothing_is_unchanged_across_a_step_while_unwatching_or_unsound() {
        let sequence = ChangeSequence::new(Quiet);
        let before = sequence.read();
        assert!(sequence.unchanged_since(before));
        sequence.step();
        assert!(!sequence.unchanged_since(before) && !sequence.unchanged_since(sequence.read()));
        sequence.step();
        assert!(!sequence.unchanged_since(before) && sequence.unchanged_since(sequence.read()));
        sequence.begin_unwatching();
        assert!(!sequence.unchanged_since(sequence.read()));
        sequence.end_unwatching();
        assert!(sequence.mark_unsound() && !sequence.mark_unsound());
        assert!(!sequence.unchanged_since(sequence.read()));
    }
}

/// A loom model of one change, the monitor that reads its event, and a hit. scripts/test runs it
/// with the cache's models.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct FakeMark(Arc<AtomicU32>);

    impl ChangeMark for FakeMark {
        fn state(&self) -> ChangeState {
            match self.0.load(Ordering::Relaxed) {
                0 => ChangeState::Quiet,
                _ => ChangeState::Changing,
            }
        }
    }

    /// Checks that a hit which begins after an address has been unmapped, and so may belong to a
    /// new mapping, does not return the old entry. The unmapping thread continues, and clears the
    /// mark, when the monitor has read the event.
    #[test]
    fn no_hit_after_an_unmap_returns_the_old_entry() {
        loom::model(|| {
            let changing = Arc::new(AtomicU32::new(0));
            let sequence = Arc::new(ChangeSequence::new(FakeMark(changing.clone())));
            let (gone, queued) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (has_read, live) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
            let unmapping = {
                let (changing, gone, queued) = (changing.clone(), gone.clone(), queued.clone());
                let has_read = has_read.clone();
                thread::spawn(move || {
                    changing.fetch_add(1, Ordering::Relaxed);
                    gone.store(true, Ordering::Release);
                    queued.store(true, Ordering::Release);
                    if has_read.load(Ordering::Acquire) {
                        // The kernel's own decrement is relaxed, after the acquire of a lock. On
                        // processors whose stores become visible to all others at once (x86-64,
                        // ARMv8) this orders it after the monitor's earlier stores for all
                        // observers.
                        changing.fetch_sub(1, Ordering::Release);
                    }
                })
            };
            let monitor = {
                let (sequence, live) = (sequence.clone(), live.clone());
                thread::spawn(move || {
                    if queued.load(Ordering::Acquire) {
                        sequence.step();
                        has_read.store(true, Ordering::Release);
                        live.store(false, Ordering::Release);
                        sequence.step();
                    }
                })
            };
            if gone.load(Ordering::Acquire) {
                let before = sequence.read();
                let hit = live.load(Ordering::Acquire);
                assert!(!(hit && sequence.unchanged_since(before)), "a stale hit");
            }
            unmapping.join().unwrap();
            monitor.join().unwrap();
        });
    }
}
