//! Leases of several ranges at once: one fence and one check for changes serve all of them.

#![allow(unsafe_code, reason = "sets the length of a vector whose elements are written in place")]

use std::sync::atomic::Ordering;

use super::hit::{UncheckedLease, count_lease, find_hint, sequence, unchanged_since};
use super::lease::Lease;
use super::lease_end::uncount_lease;
use super::miss::get;
use super::shared::CacheShared;
use super::slot::Observation;
use super::sync::fence;
use super::wait::WaitMode;
use crate::error::{Error, Result};
use crate::monitor::DescriptorSet;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// The largest number of ranges that one fence serves.
const RANGES_PER_FENCE: usize = 64;

/// The descriptors that watch the memory of a batch, and their sequences before its leases were
/// found to be live.
struct BatchChanges {
    descriptors: DescriptorSet,
    sequence: u64,
}

impl BatchChanges {
    /// Includes memory that `descriptors` watch. A descriptor that is included already keeps its
    /// older sequence, which is equally valid.
    #[inline(always)]
    fn include<R: Registrar>(&mut self, shared: &CacheShared<R>, descriptors: DescriptorSet) {
        let new = descriptors.without(self.descriptors);
        if new != DescriptorSet::EMPTY {
            let sequence = sequence(shared, new);
            // The result is odd if one of them is.
            self.sequence = (self.sequence & !1).wrapping_add(sequence & !1) | (self.sequence | sequence) & 1;
            self.descriptors = self.descriptors.with(new);
        }
    }
}

/// Appends leases of `spans` to `leases`, all or none.
///
/// # Errors
/// As [`get`].
pub(super) fn get_many<'c, R: Registrar>(
    shared: &'c CacheShared<R>,
    spans: &[Span],
    access: Access,
    leases: &mut Vec<Lease<'c, R>>,
) -> Result<()> {
    let before = leases.len();
    if !shared.fork_guard.is_current() {
        return Err(Error::Forked);
    }
    leases.reserve(spans.len());
    if hit_many(shared, spans, access, leases).is_none() {
        for lease in leases.drain(before..) {
            uncount_lease(shared, lease.into_slot());
        }
    }
    for &span in &spans[leases.len() - before..] {
        match get(shared, span, access, WaitMode::Progress) {
            Ok(lease) => leases.push(lease),
            Err(error) => {
                leases.truncate(before);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Appends leases of the first of `spans` that hit. It returns `None` if a registration or its
/// memory has changed meanwhile: then the appended leases are invalid, and the caller uncounts
/// them.
pub(super) fn hit_many<'c, R: Registrar>(
    shared: &'c CacheShared<R>,
    spans: &[Span],
    access: Access,
    leases: &mut Vec<Lease<'c, R>>,
) -> Option<()> {
    let before = leases.len();
    let mut seen = [Observation::NOTHING; RANGES_PER_FENCE];
    let mut changes = BatchChanges { descriptors: DescriptorSet::EMPTY, sequence: 0 };
    for spans in spans.chunks(RANGES_PER_FENCE) {
        let first = leases.len();
        count_hinted(shared, spans, access, leases, &mut seen);
        let hinted = leases.len() - first;
        let all = seen[..hinted].iter().fold(Observation::NOTHING, |all, one| all.and_also(*one));
        // The sequences are read before the check that the leases are live, which shows changes
        // applied by then.
        changes.include(shared, all.descriptors());
        // The fence orders the counts before the checks, as the swap of a single hit does: a thread
        // that ends a registration sees the count, or its mark is seen here.
        fence(Ordering::SeqCst);
        let is_unchanged =
            |(lease, seen): (&Lease<'_, R>, &Observation)| shared.slots[lease.slot()].is_unchanged(*seen);
        if !leases[first..].iter().zip(&seen).all(is_unchanged) {
            return None;
        }
        for &span in &spans[hinted..] {
            let Some(UncheckedLease { slot, seen, key, .. }) = count_lease(shared, span, access) else {
                break;
            };
            leases.push(Lease::new(shared, slot, key));
            changes.include(shared, seen.descriptors());
            if !shared.slots[slot].is_unchanged(seen) {
                return None;
            }
        }
        if leases.len() - first < spans.len() {
            break;
        }
    }
    let BatchChanges { descriptors, sequence } = changes;
    let is_live = |lease: &Lease<'_, R>| shared.slots[lease.slot()].is_live();
    let are_live_after_changes = || {
        shared.monitor.as_ref().is_some_and(|monitor| monitor.settle(descriptors))
            && leases[before..].iter().all(is_live)
    };
    let is_unwatched = descriptors == DescriptorSet::EMPTY;
    (is_unwatched || unchanged_since(shared, descriptors, sequence) || are_live_after_changes()).then_some(())
}

/// Counts leases of the first of `spans` that have primary hints, and stores the observation of
/// each slot. The caller issues a fence, and then checks that each observation is still true.
fn count_hinted<'c, R: Registrar>(
    shared: &'c CacheShared<R>,
    spans: &[Span],
    access: Access,
    leases: &mut Vec<Lease<'c, R>>,
    seen: &mut [Observation; RANGES_PER_FENCE],
) {
    let Some(own) = shared.counts.of_thread() else { return };
    // The caller has reserved capacity for all.
    let room = leases.spare_capacity_mut();
    let mut count = 0;
    for ((&span, place), seen) in spans.iter().zip(room).zip(seen) {
        let Some((slot, observed, key)) = find_hint(shared, own, span, access) else { break };
        own.count_before_fence(slot);
        *seen = observed;
        place.write(Lease::new(shared, slot, key));
        count += 1;
    }
    let length = leases.len() + count;
    // SAFETY: the loop has written `count` leases behind the existing ones.
    unsafe { leases.set_len(length) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cache::budget::Budget;
    use crate::monitor::MonitorMode;
    use crate::properties::Overlap;
    use crate::testing::fake::Fake;

    /// A batch in quiet memory must not look like one in memory that changes: it would wait for the
    /// monitor each time.
    #[test]
    fn descriptors_included_one_by_one_have_the_sequence_of_all() {
        let fake = Arc::new(Fake::new(Overlap::Free));
        let budget = Budget::new(1).bytes(4096);
        let shared =
            CacheShared::new(fake, budget, MonitorMode::Strict.watch().unwrap()).expect("there is memory");
        let [first, both, all] = [0b001, 0b011, 0b111].map(DescriptorSet::from_bits);
        loop {
            let mut changes = BatchChanges { descriptors: DescriptorSet::EMPTY, sequence: 0 };
            let before = sequence(&shared, all);
            for set in [first, both, all, first] {
                changes.include(&shared, set);
            }
            assert_eq!(changes.descriptors, all);
            // Otherwise the memory of another thread changes meanwhile.
            if before.is_multiple_of(2) && sequence(&shared, all) == before {
                assert_eq!(changes.sequence, before);
                break;
            }
        }
    }
}
