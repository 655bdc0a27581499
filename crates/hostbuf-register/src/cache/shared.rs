//! The state that a cache's users, its reaper and the monitor share. Leases are taken and returned here.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::eviction::EvictionPolicy;
use super::hints::{FoundHint, Hint};
use super::lease::Lease;
use super::lease_counts::{LeaseCounts, ThreadCounts};
use super::miss::{BUSY_PATIENCE, ORDERED_WAITERS, WaitMode};
use super::range_table::{self, RangeTable};
use super::slot::{Observation, Slot, SlotState};
use super::slot_details::SlotDetails;
use super::stats::Stats;
use super::sync::{Condvar, Mutex, MutexGuard};
use crate::error::{Error, Result};
use crate::os::array::Array;
use crate::os::lineage::Lineage;
use crate::os::memory;
use crate::register::monitor::{DescriptorSet, MonitorHandle, Unwatched};
use crate::register::own_ranges;
use crate::register::poison::IgnorePoison;
use crate::register::registrar::Registrar;
use crate::span::{Access, Span};

/// The longest sleep of a thread that waits for a lease to end. A thread that drops a lease checks for waiters without
/// a fence, and may miss one.
pub(super) const RECHECK: Duration = Duration::from_millis(2);

pub(super) struct CacheShared<R: Registrar> {
    pub(super) registrar: Arc<R>,
    pub(super) budget: Budget,
    pub(super) slots: Array<Slot<R::Handle>>,
    pub(super) page_shift: u32,
    pub(super) table: RangeTable,
    pub(super) counts: LeaseCounts<R::Key>,
    /// Threads that wait for leases to end.
    pub(super) waiters: AtomicUsize,
    pub(super) watch: Option<MonitorHandle>,
    pub(super) lineage: Lineage,
    pub(super) closing: AtomicBool,
    pub(super) apart: Apart,
}

/// A lease that a thread has counted on a slot that was live at that time.
pub(super) struct CountedLease<K> {
    pub(super) slot: u32,
    pub(super) seen: Observation,
    pub(super) key: K,
    /// The [`sequence`](CacheShared::sequence) from before the slot was seen to be live. Comparing it shows changes that have
    /// been applied since, or that are in progress.
    pub(super) sequence: u64,
}

/// The state that misses write, in separate cache lines, since every hit reads the rest.
#[repr(align(128))]
pub(super) struct Apart {
    pub(super) state: Mutex<CacheState>,
    /// For those who wait in wait().
    pub(super) changed: Condvar,
    /// For the reaper: something is stale.
    pub(super) stale: Condvar,
}

/// The state that the lock guards. Nothing in it allocates after construction.
pub(super) struct CacheState {
    pub(super) free: Vec<u32>,
    pub(super) registering: Vec<u32>,
    /// Filling slots whose memory has changed.
    pub(super) tainted: Vec<u32>,
    pub(super) stale: Vec<u32>,
    /// Of each slot, what no hit looks at.
    pub(super) details: Vec<SlotDetails>,
    /// Being ended by somebody who has let go of the lock; each with its number in the order in which that began.
    pub(super) deregistering: Vec<(u32, u64)>,
    pub(super) deregistrations: u64,
    /// The number of threads in wait(): a wake-up costs a system call even if no thread waits.
    pub(super) sleepers: usize,
    /// The reaper sleeps until it is woken; else it looks again soon by itself.
    pub(super) reaper_sleeps: bool,
    pub(super) policy: EvictionPolicy,
    pub(super) stats: Stats,
    /// The threads that wait for leases, in order of arrival; unordered beyond the first few thousand.
    pub(super) waiting: Vec<u64>,
    pub(super) tickets: u64,
    /// All leases ever taken, and how many of each slot are in that.
    pub(super) taken: u64,
    pub(super) folded: Vec<u32>,
}

impl<R: Registrar> CacheShared<R> {
    /// All that is ever allocated for it, but what each thread has for itself.
    ///
    /// # Errors
    /// [`Error::Os`] when there is no memory.
    pub(super) fn new(
        registrar: Arc<R>,
        budget: Budget,
        watch: Option<MonitorHandle>,
    ) -> Result<CacheShared<R>> {
        let slots = budget.regions;
        let no_room = || Error::os("making room for the registrations of a cache");
        let state = CacheState {
            free: (0..slots as u32).rev().collect(),
            registering: Vec::with_capacity(slots),
            tainted: Vec::with_capacity(slots),
            stale: Vec::with_capacity(slots),
            details: vec![SlotDetails::default(); slots],
            deregistering: Vec::with_capacity(slots),
            deregistrations: 0,
            sleepers: 0,
            reaper_sleeps: false,
            policy: EvictionPolicy::new(slots),
            stats: Stats::default(),
            waiting: Vec::with_capacity(ORDERED_WAITERS),
            tickets: 0,
            taken: 0,
            folded: vec![0; slots],
        };
        Ok(CacheShared {
            registrar,
            budget,
            slots: Array::new(slots, |_| Slot::new()).map_err(no_room())?,
            page_shift: memory::page_size().trailing_zeros(),
            table: RangeTable::new(slots),
            counts: LeaseCounts::new(slots).map_err(no_room())?,
            waiters: AtomicUsize::new(0),
            watch,
            lineage: Lineage::here(),
            closing: AtomicBool::new(false),
            apart: Apart { state: Mutex::new(state), changed: Condvar::new(), stale: Condvar::new() },
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.apart.state.lock().ignore_poison()
    }

    /// Lets go of the lock, after a change that others may wait for.
    pub(super) fn unlock(&self, state: MutexGuard<'_, CacheState>) {
        let wake = state.sleepers > 0;
        drop(state);
        if wake {
            self.apart.changed.notify_all();
        }
    }

    /// Of a slot in which the calling thread has counted a lease.
    pub(super) fn lease(&self, slot: u32) -> Lease<'_, R> {
        self.lease_by(slot, self.key(slot))
    }

    #[inline(always)]
    pub(super) fn lease_by(&self, slot: u32, key: R::Key) -> Lease<'_, R> {
        Lease { shared: self, slot, key, cache: PhantomData }
    }

    /// The key of a slot in which the calling thread has counted a lease.
    #[allow(unsafe_code)]
    fn key(&self, slot: u32) -> R::Key {
        // SAFETY: a lease has been counted, and not been given back yet.
        self.registrar.key(unsafe { self.slots[slot as usize].handle() })
    }

    #[inline(always)]
    pub(super) fn get(
        &self,
        start: *const u8,
        length: usize,
        access: Access,
        wait: WaitMode,
    ) -> Result<Lease<'_, R>> {
        let span = Span::new(start as usize, length)?;
        match self.hit(span, access) {
            Some(lease) => Ok(lease),
            None => self.miss(span, access, wait),
        }
    }

    /// Takes a lease of what is there, without the lock.
    #[inline(always)]
    pub(super) fn hit(&self, span: Span, access: Access) -> Option<Lease<'_, R>> {
        let CountedLease { slot, seen, key, sequence } = self.count_lease(span, access)?;
        if !seen.is_watched()
            || self.unchanged_since(seen.descriptors(), sequence)
            || self.is_still_live(slot, seen.descriptors())
        {
            return Some(self.lease_by(slot, key));
        }
        self.take_back(slot);
        None
    }

    /// Returns a lease as `hit` does, but without waiting.
    #[inline(always)]
    pub(super) fn hit_without_wait(&self, span: Span, access: Access) -> Option<Lease<'_, R>> {
        let CountedLease { slot, seen, key, sequence } = self.count_lease(span, access)?;
        if !seen.is_watched() || self.unchanged_since(seen.descriptors(), sequence) {
            return Some(self.lease_by(slot, key));
        }
        self.take_back(slot);
        None
    }

    /// Returns whether a leased slot is live after every change in progress has been applied.
    #[cold]
    pub(super) fn is_still_live(&self, slot: u32, descriptors: DescriptorSet) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.settle(descriptors))
            && self.slots[slot as usize].is_live()
    }

    /// Returns a number that each change of memory watched by `descriptors` advances.
    #[inline(always)]
    pub(super) fn sequence(&self, descriptors: DescriptorSet) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.sequence(descriptors))
    }

    /// Returns whether no change of memory watched by `descriptors` is in progress, and none has been applied since
    /// `before`.
    #[inline(always)]
    pub(super) fn unchanged_since(&self, descriptors: DescriptorSet, before: u64) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.unchanged_since(descriptors, before))
    }

    /// Takes a lease of what this thread has found there before, else of what the table has.
    #[inline(always)]
    pub(super) fn count_lease(&self, span: Span, access: Access) -> Option<CountedLease<R::Key>> {
        if let Some(own) = self.counts.last()
            && let Some((slot, seen, key)) = self.look_up_hint(own, span, access)
        {
            let sequence = self.sequence(seen.descriptors());
            own.take(slot);
            // From here on, if it is live, nobody ends it or makes it something else.
            if self.slots[slot as usize].is_unchanged(seen) {
                return Some(CountedLease { slot, seen, key, sequence });
            }
            self.take_back(slot);
        }
        self.search(span, access)
    }

    /// Returns this thread's guess for the range if its slot is still live, without counting a lease.
    #[inline(always)]
    pub(super) fn look_up_hint(
        &self,
        own: ThreadCounts<'_, R::Key>,
        span: Span,
        access: Access,
    ) -> Option<(u32, Observation, R::Key)> {
        self.confirm_hint(own.find(span.start() >> self.page_shift)?, span, access)
    }

    /// Returns the slot of a thread's guess if the slot is still live and the guess is still valid.
    #[inline(always)]
    fn confirm_hint(
        &self,
        found: FoundHint<'_, R::Key>,
        span: Span,
        access: Access,
    ) -> Option<(u32, Observation, R::Key)> {
        let Hint { slot, number, key } = found.hint;
        let seen = self.slots.get(slot as usize)?.observe_version(span, access, number)?;
        // The guess is checked after the slot, since the number of a description is reused after 2^24 descriptions.
        found.is_current().then_some((slot, seen, key))
    }

    #[inline(never)]
    fn search(&self, span: Span, access: Access) -> Option<CountedLease<R::Key>> {
        // A child of the cache's process comes here, since its guesses are gone, and goes no further.
        if !self.lineage.is_here() {
            return None;
        }
        let own = self.counts.own()?;
        let page = span.start() >> self.page_shift;
        let see = |here: &Slot<R::Handle>| here.observe(span, access);
        let wrong = |other: u32, number: u32| self.slots[other as usize].number() != number;
        for slot in own.overflow(page) {
            if let Some((seen, sequence)) = self.take(own, slot, see) {
                let key = self.key(slot);
                own.refresh(page, Hint { slot, number: seen.number(), key }, wrong);
                return Some(CountedLease { slot, seen, key, sequence });
            }
        }
        let range_table::Lookup::Slot(slot) =
            self.table.find(span, |slot| self.slots[slot as usize].covers(span, access))
        else {
            return None;
        };
        let (seen, sequence) = self.take(own, slot, see)?;
        let key = self.key(slot);
        own.store(page, Hint { slot, number: seen.number(), key }, wrong, |other| {
            let there = self.slots[other as usize].span();
            there.start() >> self.page_shift > page || (there.end() - 1) >> self.page_shift < page
        });
        Some(CountedLease { slot, seen, key, sequence })
    }

    /// Looks whether a slot is what is wanted, counts a lease, and then looks whether there was anything to lease.
    #[inline(always)]
    fn take(
        &self,
        own: ThreadCounts<'_, R::Key>,
        slot: u32,
        see: impl Fn(&Slot<R::Handle>) -> Option<Observation>,
    ) -> Option<(Observation, u64)> {
        let here = self.slots.get(slot as usize)?;
        let seen = see(here)?;
        let sequence = self.sequence(seen.descriptors());
        own.take(slot);
        // From here on, if it is live, nobody ends it or makes it something else.
        if here.is_unchanged(seen) {
            return Some((seen, sequence));
        }
        own.take_back(slot);
        self.after_lease_end(slot);
        None
    }

    /// The same with the lock: by the shared words where this thread has none of its own.
    pub(super) fn count_locked(&self, slot: u32, span: Span, access: Access) -> bool {
        let here = &self.slots[slot as usize];
        let Some(seen) = here.observe(span, access) else { return false };
        self.counts.take(slot);
        // Nobody changes it while the lock is held.
        debug_assert!(here.is_unchanged(seen));
        true
    }

    /// Ends a lease; in a forked child it changes nothing that is not the child's own.
    #[inline(always)]
    pub(super) fn give(&self, slot: u32) {
        let Some(own) = self.counts.last() else { return self.return_lease_slowly(slot) };
        own.give(slot);
        self.after_lease_end(slot);
    }

    #[cold]
    fn return_lease_slowly(&self, slot: u32) {
        if self.lineage.is_here() {
            self.counts.give(slot);
            self.notify_lease_end(slot);
        }
    }

    /// What this thread has counted was no lease, and never becomes one.
    #[cold]
    pub(super) fn take_back(&self, slot: u32) {
        self.counts.take_back(slot);
        self.after_lease_end(slot);
    }

    /// Whoever waits for a lease to end is told, and what goes with its last lease goes.
    #[inline(always)]
    fn after_lease_end(&self, slot: u32) {
        if self.slots[slot as usize].is_stale() || self.waiters.load(Ordering::Relaxed) > 0 {
            self.notify_lease_end(slot);
        }
    }

    /// A lease has ended that somebody may wait for.
    #[cold]
    fn notify_lease_end(&self, slot: u32) {
        if !self.lineage.is_here() {
            return;
        }
        if self.slots[slot as usize].is_stale() {
            self.deregister_if_unused(slot);
        }
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.apart.changed.notify_all();
        }
    }

    /// Sees to it that what covers `span` is not ended to make room.
    ///
    /// # Errors
    /// As get(); what cannot be watched, and so is registered for its leases only, cannot be kept.
    pub(super) fn keep(&self, span: Span, access: Access) -> Result<()> {
        let begun = Instant::now();
        loop {
            let lease = self.get(span.start() as *const u8, span.len(), access, WaitMode::Progress)?;
            let here = &self.slots[lease.slot as usize];
            let owned = own_ranges::find(span).is_some();
            let mut state = self.lock();
            match here.state() {
                SlotState::Live => {
                    state.policy.remove(lease.slot);
                    here.keep();
                    return Ok(());
                }
                _ => {
                    drop(state);
                    // Its memory has changed since; or it may be kept soon. Without the lock, which the monitor takes.
                    let changed = here.is_watched() || self.watch.is_none() || owned;
                    if changed && begun.elapsed() < BUSY_PATIENCE {
                        continue;
                    }
                    if begun.elapsed() < BUSY_PATIENCE && self.is_busy(span) {
                        std::thread::yield_now();
                        continue;
                    }
                    let why = match changed {
                        true => "it changes all the time, so it cannot be kept beyond a lease",
                        false => "nobody tells when this memory changes, so it cannot be kept beyond a lease",
                    };
                    let why = why.to_owned();
                    return Err(Error::Registration {
                        device: self.registrar.name(),
                        span,
                        access,
                        why,
                        source: None,
                    });
                }
            }
        }
    }

    /// Whether it may be kept soon.
    fn is_busy(&self, span: Span) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| !matches!(watch.watch(span), Err(why) if why != Unwatched::Busy))
    }

    pub(super) fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, CacheState>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, CacheState> {
        let left =
            until.map_or(RECHECK, |until| until.saturating_duration_since(Instant::now()).min(RECHECK));
        state.sleepers += 1;
        let waited = self.apart.changed.wait_timeout(state, left.max(Duration::from_micros(50)));
        let mut state = waited.ignore_poison().0;
        state.sleepers -= 1;
        state
    }

    pub(super) fn stats(&self) -> Stats {
        if !self.lineage.is_here() {
            // The lock may be held by a thread that the child does not have.
            return Stats::default();
        }
        let mut state = self.lock();
        self.fold(&mut state);
        let mut stats = state.stats;
        stats.waiting = state.waiting.len();
        stats.hits = state.taken.saturating_sub(stats.misses + stats.coalesced);
        stats
    }

    /// What somebody has forgotten to end stays registered: so its memory stays as well.
    pub(super) fn retain_forgotten_memory(&self) {
        let mut state = self.lock();
        for (slot, here) in self.slots.iter().enumerate() {
            if here.state() != SlotState::Free {
                std::mem::forget(state.details[slot].memory.take());
            }
        }
    }

    /// Adds up the leases taken, before the threads' words of 32 bits go round.
    pub(super) fn fold(&self, state: &mut CacheState) {
        for slot in 0..self.slots.len() {
            let (taken, _) = self.counts.sum(slot as u32);
            let (more, less) =
                (taken.wrapping_sub(state.folded[slot]), state.folded[slot].wrapping_sub(taken));
            // A few were seen the last time that have been taken back since.
            state.taken = if less < 1 << 16 {
                state.taken.saturating_sub(less.into())
            } else {
                state.taken + u64::from(more)
            };
            state.folded[slot] = taken;
        }
    }
}

pub(super) fn key_of(span: Span, access: Access) -> u64 {
    let mix = |h: u64, v: u64| (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mix(mix(mix(1, span.start() as u64), span.len() as u64), u64::from(access.bits())) | 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::register::fake::Fake;
    use crate::register::registrar::Overlap;

    const START: usize = 0x10_0000;
    const VERSION_BITS: u32 = 1 << super::super::slot::VERSION_BITS;

    fn with_room_for_one() -> CacheShared<Fake> {
        let fake = Arc::new(Fake::new(Overlap::Free));
        CacheShared::new(fake, Budget { regions: 1, bytes: 1 << 20 }, None).expect("there is memory")
    }

    fn get(shared: &CacheShared<Fake>) {
        let lease =
            shared.get(START as *const u8, 100, Access::READ, WaitMode::Progress).expect("there is room");
        assert_eq!(lease.key(), lease.handle().0, "the key of another registration");
    }

    fn end(shared: &CacheShared<Fake>) {
        shared.make_stale(Span::new(START, 100).expect("a range"), |stats| &mut stats.invalidated);
        shared.deregister_stale().expect("the fake ends it");
    }

    /// A thread that sleeps meanwhile, and one that takes over what another one has left, look at a slot that has the number of
    /// long ago.
    #[test]
    fn a_reused_version_is_not_the_old_registration() {
        for number in [0, 1, 5, VERSION_BITS - 1] {
            let shared = with_room_for_one();
            shared.slots[0].set_version(number.wrapping_sub(1));
            (0..3).for_each(|_| get(&shared));
            std::thread::scope(|scope| drop(scope.spawn(|| (0..3).for_each(|_| get(&shared)))));
            end(&shared);
            // All between in one step, the one at which they begin again, and up to the same.
            shared.slots[0].set_version(VERSION_BITS - 1);
            std::thread::scope(|scope| {
                drop(scope.spawn(|| {
                    get(&shared);
                    end(&shared);
                }));
            });
            if number != 0 {
                shared.slots[0].set_version(VERSION_BITS + number - 1);
            }
            std::thread::scope(|scope| drop(scope.spawn(|| (0..2).for_each(|_| get(&shared)))));
            get(&shared);
        }
    }

    /// The same between a thread's look at its guess and its look at the slot.
    #[test]
    fn a_hint_found_before_its_version_is_reused_is_not_current() {
        let shared = with_room_for_one();
        shared.slots[0].set_version(u32::MAX);
        (0..3).for_each(|_| get(&shared));
        let own = shared.counts.last().expect("this cache was used last");
        let found = own.find(START >> shared.page_shift).expect("it was learned");
        end(&shared);
        shared.slots[0].set_version(VERSION_BITS - 1);
        std::thread::scope(|scope| drop(scope.spawn(|| get(&shared))));
        let span = Span::new(START, 100).expect("a range");
        assert!(
            shared.slots[0].observe_version(span, Access::READ, found.hint.number).is_some(),
            "the same number"
        );
        assert!(shared.confirm_hint(found, span, Access::READ).is_none(), "the key of another registration");
    }
}
