//! The state that the cache's lock guards, and the transitions of slots under it.

use super::budget::Budget;
use super::cache_slot::CacheSlot;
use super::eviction::{EvictionPolicy, Shortage, key_of};
use super::lease_counts::LeaseCounts;
use super::lease_totals::LeaseTotals;
use super::slot::{Slot, SlotState};
use super::slot_details::SlotDetails;
use super::slot_lists::SlotLists;
use super::slots::Slots;
use super::stats::Stats;
use super::usage::BudgetUsage;
use super::wait_queue::WaitQueue;
use crate::span::Span;

/// The state that the cache's lock guards. Nothing in it allocates after construction, since the
/// monitor takes the lock while another thread may be inside `free`.
pub(super) struct CacheState {
    pub(super) lists: SlotLists,
    pub(super) usage: BudgetUsage,
    pub(super) policy: EvictionPolicy,
    /// The details of each slot, which no hit reads.
    pub(super) details: Vec<SlotDetails>,
    pub(super) queue: WaitQueue,
    pub(super) totals: LeaseTotals,
    /// The counters; the figures that other parts own are added by [`report`](CacheState::report).
    pub(super) stats: Stats,
}

impl CacheState {
    /// Makes the state of an empty cache.
    pub(super) fn new(budget: Budget) -> CacheState {
        let slots = budget.registrations;
        CacheState {
            lists: SlotLists::new(slots),
            usage: BudgetUsage::new(budget),
            policy: EvictionPolicy::new(slots),
            details: vec![SlotDetails::default(); slots],
            queue: WaitQueue::new(),
            totals: LeaseTotals::new(slots),
            stats: Stats::default(),
        }
    }

    /// Returns the details of a slot.
    #[inline]
    pub(super) fn details(&mut self, slot: CacheSlot) -> &mut SlotDetails {
        &mut self.details[slot.index()]
    }

    /// Returns the number of bytes of the budget that a slot takes.
    #[inline]
    pub(super) fn bytes_of(&self, slot: CacheSlot) -> usize {
        self.details[slot.index()].bytes
    }

    /// Returns the statistics, with the leases counted by now.
    pub(super) fn report<K: Copy>(&mut self, counts: &LeaseCounts<K>) -> Stats {
        self.totals.fold(|slot| counts.sum(slot).0);
        let mut stats = self.stats;
        self.usage.report(&mut stats);
        stats.waiting = self.queue.len();
        stats.hits = self.totals.total().saturating_sub(stats.misses + stats.coalesced);
        stats
    }

    /// Makes a slot Deregistering. From then on only the calling thread changes it.
    pub(super) fn begin_deregistering<H>(&mut self, slots: &Slots<H>, slot: CacheSlot) {
        slots[slot].set_state(SlotState::Deregistering);
        self.lists.begin_deregistering(slot);
    }

    /// Makes a live slot Deregistering if it is not leased.
    pub(super) fn try_evict<H, K: Copy>(
        &mut self,
        slots: &Slots<H>,
        counts: &LeaseCounts<K>,
        slot: CacheSlot,
    ) -> bool {
        // A thread that takes a lease counts it and then reads the state; this one sets the state
        // and then sums the counts.
        slots[slot].set_state(SlotState::Dying);
        if counts.leases(slot) != 0 {
            slots[slot].set_state(SlotState::Live);
            return false;
        }
        self.policy.remove(slot);
        slots.unpublish(slot);
        self.begin_deregistering(slots, slot);
        true
    }

    /// Evicts a live registration that is not leased: selects one and makes its slot Deregistering.
    pub(super) fn evict<H, K: Copy>(
        &mut self,
        slots: &Slots<H>,
        counts: &LeaseCounts<K>,
        shortage: Shortage,
        key: u64,
    ) -> Option<CacheSlot> {
        // A thread may take a lease after the policy has summed the counts. Then another
        // registration is selected.
        for _ in 0..=self.usage.registrations() {
            let count = |slot: CacheSlot| {
                let (taken, dropped) = counts.sum(slot);
                (taken, taken != dropped)
            };
            let slot = self.policy.choose(shortage, key, count)?;
            if self.try_evict(slots, counts, slot) {
                self.stats.evictions += 1;
                return Some(slot);
            }
            let here = &slots[slot];
            self.add_to_policy(counts, slot, key_of(here.span(), here.access()));
        }
        None
    }

    /// Makes a slot evictable. `key` is the one by which the policy recognises the registration.
    pub(super) fn add_to_policy<K: Copy>(&mut self, counts: &LeaseCounts<K>, slot: CacheSlot, key: u64) {
        self.policy.add(slot, key, self.details[slot.index()].bytes, counts.sum(slot).0);
    }

    /// Makes a stale slot Deregistering that is not leased and whose range `wanted` accepts.
    pub(super) fn claim_unused<H, K: Copy>(
        &mut self,
        slots: &Slots<H>,
        counts: &LeaseCounts<K>,
        wanted: impl Fn(Span) -> bool,
    ) -> Option<CacheSlot> {
        let slot = self.lists.take_stale(|slot| wanted(slots[slot].span()) && counts.leases(slot) == 0)?;
        self.begin_deregistering(slots, slot);
        Some(slot)
    }

    /// Makes the given slot Deregistering if it is stale and not leased.
    pub(super) fn claim_if_unused<H, K: Copy>(
        &mut self,
        slots: &Slots<H>,
        counts: &LeaseCounts<K>,
        slot: CacheSlot,
    ) -> bool {
        let is_unused = |other: CacheSlot| {
            other == slot && slots[slot].state() == SlotState::Stale && counts.leases(slot) == 0
        };
        let claimed = self.lists.take_stale(is_unused).is_some();
        if claimed {
            self.begin_deregistering(slots, slot);
        }
        claimed
    }

    /// Makes live slots that overlap `span` and that `wanted` accepts stale, and counts each by
    /// `cause`. Registrations in progress are made stale when they finish. Returns whether any slot
    /// was live.
    ///
    /// The monitor calls it too, so it neither allocates nor makes a system call.
    pub(super) fn make_stale<H>(
        &mut self,
        slots: &Slots<H>,
        span: Span,
        wanted: impl Fn(&Slot<H>) -> bool,
        cause: impl Fn(&mut Stats) -> &mut u64,
    ) -> bool {
        let mut any = false;
        while let Some(slot) = slots.find_overlapping(span, |slot| wanted(&slots[slot])) {
            slots[slot].set_state(SlotState::Stale);
            self.policy.remove(slot);
            slots.unpublish(slot);
            self.lists.add_stale(slot);
            *cause(&mut self.stats) += 1;
            any = true;
        }
        self.lists.taint(|slot| slots[slot].span().overlaps(span) && wanted(&slots[slot]));
        any
    }

    /// Returns a slot that overlaps `span` and that the device has registered, or may have.
    pub(super) fn conflicting<H>(&self, slots: &Slots<H>, span: Span) -> Option<CacheSlot> {
        let live = slots.find_overlapping(span, |_| true);
        live.or_else(|| self.lists.unlisted().find(|&slot| slots[slot].span().overlaps(span)))
    }

    /// Returns the number of bytes that are available once every unleased registration has been
    /// evicted and everything in progress has ended.
    pub(super) fn attainable_bytes<H, K: Copy>(&self, slots: &Slots<H>, counts: &LeaseCounts<K>) -> usize {
        let can_end = |(slot, _): &(CacheSlot, &SlotDetails)| {
            let here = &slots[*slot];
            match here.state() {
                SlotState::Registering | SlotState::Deregistering => true,
                SlotState::Live => !here.is_kept() && counts.leases(*slot) == 0,
                SlotState::Stale => counts.leases(*slot) == 0,
                SlotState::Free | SlotState::Dying | SlotState::Leaked => false,
            }
        };
        let removable = CacheSlot::all().zip(&self.details).filter(can_end).map(|(_, details)| details.bytes);
        removable.fold(self.usage.bytes_left(), usize::saturating_add)
    }
}
