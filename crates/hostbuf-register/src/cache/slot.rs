//! A slot: one registration of a cache, its state, and the device's handle.

#![allow(unsafe_code, reason = "the state of a slot decides which thread may access its handle")]

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use super::sync::{AtomicU64, AtomicUsize, HandleCell};
use crate::monitor::DescriptorSet;
use crate::span::{Access, Span};

/// The state of a slot. Only the holder of the cache's lock changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SlotState {
    /// Nothing is registered.
    Free = 0,
    /// A thread is registering it with the device.
    Registering = 1,
    /// It can be leased.
    Live = 2,
    /// Transient: an evictor is checking for leases.
    Dying = 3,
    /// It is deregistered after its last lease, since its memory has changed or cannot be watched.
    Stale = 4,
    /// A thread is deregistering it.
    Deregistering = 5,
    /// Its deregistration has failed. It counts in the budget for ever.
    Leaked = 6,
}

/// The part of a registration that a hit reads: the range, a word with the state and the version,
/// and the device's handle. It takes half a cache line if the handle has one word.
///
/// ```text
///   word   63            32 31            16 15       8 7                   0
///             version        descriptors      state       access, kept, filled
/// ```
///
/// Each registration of a slot has another version. A thread that reads the same word before and
/// after it has counted a lease has read the range of the registration that it leases.
#[repr(C, align(32))]
pub(super) struct Slot<H> {
    start: AtomicUsize,
    end: AtomicUsize,
    word: AtomicU64,
    /// The handle. The thread that has set the state Registering or Deregistering writes it, and
    /// threads with a lease read it.
    handle: HandleCell<MaybeUninit<H>>,
}

// SAFETY: threads with leases share the handle by reference, and one thread owns it while there is
// no lease.
unsafe impl<H: Send + Sync> Sync for Slot<H> {}

/// The bit of a registration that is exempt from eviction.
const KEPT: u64 = 1 << 6;
/// The bit of a slot that has a handle.
const FILLED: u64 = 1 << 7;
/// The position of the set of the monitor's userfaultfds that watch the memory; the set is empty
/// for unwatched memory.
const DESCRIPTORS: u32 = 16;
/// The position of the state.
const STATE: u32 = 8;
/// The bits of the state.
const STATES: u64 = 0xff << STATE;
/// The lowest bit of the version.
const VERSION_UNIT: u64 = 1 << 32;
/// The number of bits of a version that a hint stores.
pub(super) const VERSION_BITS: u32 = 24;
/// The bits of the version that a hint stores.
const VERSION_MASK: u64 = VERSION_UNIT * ((1 << VERSION_BITS) - 1);

/// The observation of a live, covering slot by a hit. The hit checks it again after it has counted
/// the lease.
#[derive(Clone, Copy)]
pub(super) struct Observation(u64);

impl Observation {
    /// The empty observation, which no slot has.
    pub(super) const NOTHING: Observation = Observation(0);

    /// Combines two observations: the result has the properties that either of them has.
    #[inline(always)]
    pub(super) fn and_also(self, other: Observation) -> Observation {
        Observation(self.0 | other.0)
    }

    /// Returns the bits of the observed version that a hint stores.
    #[inline(always)]
    pub(super) fn version(self) -> u32 {
        ((self.0 & VERSION_MASK) / VERSION_UNIT) as u32
    }

    /// Returns the descriptors that a hit must check for changes.
    #[inline(always)]
    pub(super) fn descriptors(self) -> DescriptorSet {
        DescriptorSet::from_bits((self.0 >> DESCRIPTORS) as u16)
    }

    /// Returns whether a hit must check for changes.
    #[inline(always)]
    pub(super) fn is_watched(self) -> bool {
        self.descriptors() != DescriptorSet::EMPTY
    }
}

impl<H> Slot<H> {
    /// Makes a free slot.
    pub(super) fn new() -> Slot<H> {
        Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            word: AtomicU64::new(SlotState::Free as u64),
            handle: HandleCell::new(MaybeUninit::uninit()),
        }
    }

    /// Sets the version, as that many registrations would. For tests.
    #[cfg(all(test, not(loom)))]
    pub(super) fn set_version(&self, version: u32) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((word % VERSION_UNIT) | (u64::from(version) * VERSION_UNIT), Ordering::SeqCst);
    }

    /// Returns the state.
    pub(super) fn state(&self) -> SlotState {
        match (self.word.load(Ordering::SeqCst) & STATES) >> STATE {
            0 => SlotState::Free,
            1 => SlotState::Registering,
            2 => SlotState::Live,
            3 => SlotState::Dying,
            4 => SlotState::Stale,
            5 => SlotState::Deregistering,
            _ => SlotState::Leaked,
        }
    }

    /// Returns whether the slot is live.
    #[inline(always)]
    pub(super) fn is_live(&self) -> bool {
        self.word.load(Ordering::SeqCst) & STATES == (SlotState::Live as u64) << STATE
    }

    /// Returns whether the end of a lease requires work by the reaper.
    #[inline(always)]
    pub(super) fn is_stale(&self) -> bool {
        self.word.load(Ordering::Relaxed) & STATES == (SlotState::Stale as u64) << STATE
    }

    /// Sets the state. The caller holds the cache's lock, as for all changes of a slot.
    pub(super) fn set_state(&self, state: SlotState) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word & !STATES | (state as u64) << STATE, Ordering::SeqCst);
    }

    /// Sets the range, the access and the descriptors of a free slot, and makes it Registering.
    /// Returns the version, which wraps around after 2^24 registrations.
    pub(super) fn describe(&self, span: Span, access: Access, watched: DescriptorSet) -> u32 {
        let version = (self.word.load(Ordering::Relaxed) & !(VERSION_UNIT - 1)).wrapping_add(VERSION_UNIT);
        let watched = u64::from(watched.bits()) << DESCRIPTORS;
        let word = version | watched | (SlotState::Registering as u64) << STATE | u64::from(access.bits());
        // The word is written before the range, so that a reader which sees a part of the new range
        // does not find the old word afterwards.
        self.word.swap(word, Ordering::SeqCst);
        self.start.store(span.start(), Ordering::Release);
        self.end.store(span.end(), Ordering::Release);
        Observation(word).version()
    }

    /// Returns an observation if the slot is live and covers the request, as far as can be seen
    /// without a lease.
    #[inline(always)]
    pub(super) fn observe(&self, span: Span, access: Access) -> Option<Observation> {
        self.look(span, 0, u64::from(access.bits()))
    }

    /// Returns the observation if the slot still has the given version.
    #[inline(always)]
    pub(super) fn observe_version(&self, span: Span, access: Access, version: u32) -> Option<Observation> {
        self.look(span, VERSION_MASK, (u64::from(version) * VERSION_UNIT) | u64::from(access.bits()))
    }

    /// Returns an observation if the slot's word has `bits`, and no other bits of `mask`.
    #[inline(always)]
    fn look(&self, span: Span, mask: u64, bits: u64) -> Option<Observation> {
        let word = self.word.load(Ordering::Acquire);
        let wanted = (SlotState::Live as u64) << STATE | bits;
        let there = word & (STATES | mask | bits) == wanted;
        (there && self.contains(span)).then_some(Observation(word))
    }

    /// Returns whether the slot is unchanged since an observation. If it is, after a lease has been
    /// counted, the slot keeps its registration until the lease is returned; only its state may
    /// become Stale.
    #[inline(always)]
    pub(super) fn is_unchanged(&self, seen: Observation) -> bool {
        self.word.load(Ordering::SeqCst) == seen.0
    }

    /// Returns whether the range contains all of `span`.
    #[inline(always)]
    fn contains(&self, span: Span) -> bool {
        self.start.load(Ordering::Acquire) <= span.start() && span.end() <= self.end.load(Ordering::Acquire)
    }

    /// Returns the bits of the version that a hint stores.
    pub(super) fn version(&self) -> u32 {
        Observation(self.word.load(Ordering::Relaxed)).version()
    }

    /// Returns whether the range and the access suffice for a request, in whatever state the slot
    /// is. Without the cache's lock the answer may be outdated.
    pub(super) fn covers(&self, span: Span, access: Access) -> bool {
        self.contains(span) && self.access().allows(access)
    }

    /// Returns whether the monitor watches the memory.
    pub(super) fn is_watched(&self) -> bool {
        Observation(self.word.load(Ordering::Relaxed)).is_watched()
    }

    /// Returns the descriptors that watch the slot's memory.
    pub(super) fn descriptors(&self) -> DescriptorSet {
        Observation(self.word.load(Ordering::Relaxed)).descriptors()
    }

    /// Returns whether the slot is exempt from eviction.
    pub(super) fn is_kept(&self) -> bool {
        self.word.load(Ordering::Relaxed) & KEPT != 0
    }

    /// Exempts the slot from eviction. The caller holds the cache's lock.
    pub(super) fn keep(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) | KEPT, Ordering::SeqCst);
    }

    /// Returns the access of the registration.
    pub(super) fn access(&self) -> Access {
        Access::from_bits(self.word.load(Ordering::Relaxed) as u8)
    }

    /// Returns the range, which for a free slot is the last one that it had.
    pub(super) fn span(&self) -> Span {
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        Span::new(start.max(1), end.saturating_sub(start).max(1)).expect("a range that was one")
    }

    /// Stores the device's handle.
    ///
    /// # Safety
    /// The slot is Registering, and the calling thread has set this state.
    pub(super) unsafe fn fill(&self, handle: H) {
        // SAFETY: no other thread accesses the handle of a Registering slot.
        self.handle.with_mut(|place| unsafe { (*place).write(handle) });
        self.word.fetch_or(FILLED, Ordering::SeqCst);
    }

    /// Removes and returns the device's handle.
    ///
    /// # Safety
    /// The slot is Deregistering, and the calling thread has set this state; or no other thread has
    /// the cache.
    pub(super) unsafe fn empty(&self) -> Option<H> {
        let filled = self.word.fetch_and(!FILLED, Ordering::SeqCst) & FILLED != 0;
        // SAFETY: the bit shows that there is a handle and that nobody has taken it; no other
        // thread accesses the handle of a Deregistering slot.
        filled.then(|| self.handle.with_mut(|place| unsafe { (*place).assume_init_read() }))
    }

    /// Returns the device's handle.
    ///
    /// # Safety
    /// The caller holds a lease of the slot.
    #[inline(always)]
    pub(super) unsafe fn handle(&self) -> &H {
        // SAFETY: a leased slot has a handle, which does not change as long as a lease exists.
        self.handle.with(|place| unsafe { (*place).assume_init_ref() })
    }
}

impl<H> Drop for Slot<H> {
    fn drop(&mut self) {
        // SAFETY: no other thread has the slot. A remaining handle belongs to a lease that the
        // program has forgotten.
        drop(unsafe { self.empty() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_taken_once() {
        let counted = std::sync::Arc::new(());
        let slot = Slot::new();
        for _ in 0..2 {
            slot.describe(Span::new(1, 1).unwrap(), Access::READ, DescriptorSet::EMPTY);
            // SAFETY: only this thread has the slot.
            let taken = unsafe {
                slot.fill(counted.clone());
                assert_eq!(std::sync::Arc::strong_count(slot.handle()), 2);
                (slot.empty(), slot.empty())
            };
            assert!(taken.0.is_some() && taken.1.is_none());
        }
        // SAFETY: as above.
        unsafe { slot.fill(counted.clone()) };
        drop(slot);
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }

    #[test]
    fn an_observation_is_valid_until_the_slot_changes() {
        let span = |start, length| Span::new(start, length).unwrap();
        let slot = Slot::<u64>::new();
        let watched = DescriptorSet::from_bits(1 << 15 | 1);
        assert_eq!((slot.state(), size_of_val(&slot)), (SlotState::Free, 32));
        slot.describe(span(100, 50), Access::WRITE, watched);
        assert!(slot.observe(span(100, 1), Access::READ).is_none());
        slot.set_state(SlotState::Live);
        let seen = slot.observe(span(110, 40), Access::READ).unwrap();
        assert!(seen.is_watched() && slot.is_watched() && slot.is_unchanged(seen));
        assert_eq!((seen.descriptors(), slot.descriptors()), (watched, watched));
        assert!(
            slot.observe(span(110, 41), Access::READ).is_none()
                && slot.observe(span(99, 2), Access::READ).is_none()
        );
        assert!(slot.observe(span(110, 1), Access::REMOTE_WRITE).is_none());
        for state in [SlotState::Dying, SlotState::Stale, SlotState::Deregistering, SlotState::Free] {
            slot.set_state(state);
            assert!(!slot.is_unchanged(seen) && slot.observe(span(110, 1), Access::READ).is_none());
            assert_eq!((slot.state(), slot.is_stale()), (state, state == SlotState::Stale));
        }
        assert!(slot.observe_version(span(110, 1), Access::READ, seen.version()).is_none());
        // The same range again is another registration.
        let version = slot.describe(span(100, 50), Access::WRITE, watched);
        slot.set_state(SlotState::Live);
        assert!(!slot.is_unchanged(seen) && slot.observe(span(110, 40), Access::READ).is_some());
        assert_eq!((slot.span(), slot.access()), (span(100, 50), Access::WRITE));
        let again =
            |access, version| slot.observe_version(span(110, 40), access, version).map(Observation::version);
        assert_eq!(
            (again(Access::READ, version), again(Access::READ, seen.version())),
            (Some(version), None)
        );
        assert_eq!((again(Access::REMOTE_WRITE, version), again(Access::READ, version ^ 1)), (None, None));
    }

    #[test]
    fn versions_wrap_around() {
        let span = Span::new(1, 1).unwrap();
        let slot = Slot::<u64>::new();
        slot.word.fetch_or(!(VERSION_UNIT - 1), Ordering::Relaxed);
        assert_eq!(
            [
                slot.describe(span, Access::READ, DescriptorSet::EMPTY),
                slot.describe(span, Access::READ, DescriptorSet::first(1))
            ],
            [0, 1]
        );
    }
}
