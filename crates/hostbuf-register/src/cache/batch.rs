//! Leases of several ranges at once: what costs most is done once for all of them.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use super::lease::Lease;
use super::miss::WaitMode;
use super::shared::{CacheShared, CountedLease};
use super::slot::Observation;
use super::sync::fence;
use crate::error::{Error, Result};
use crate::register::monitor::DescriptorSet;
use crate::register::registrar::Registrar;
use crate::span::{Access, Span};

/// Ranges between two fences.
const AT_ONCE: usize = 64;

/// The descriptors that watch the memory of a batch, and their sequences before its leases were seen to be live.
struct BatchChanges {
    descriptors: DescriptorSet,
    sequence: u64,
}

impl BatchChanges {
    /// Includes memory that `descriptors` watch. A descriptor that is included already keeps its older sequence, which
    /// is equally valid.
    #[inline(always)]
    fn include<R: Registrar>(&mut self, shared: &CacheShared<R>, descriptors: DescriptorSet) {
        let new = descriptors.without(self.descriptors);
        if new != DescriptorSet::EMPTY {
            let sequence = shared.sequence(new);
            // The result is odd if one of them is.
            self.sequence = (self.sequence & !1).wrapping_add(sequence & !1) | (self.sequence | sequence) & 1;
            self.descriptors = self.descriptors.with(new);
        }
    }
}

impl<R: Registrar> CacheShared<R> {
    pub(super) fn get_many<'c>(
        &'c self,
        spans: &[Span],
        access: Access,
        leases: &mut Vec<Lease<'c, R>>,
    ) -> Result<()> {
        let before = leases.len();
        if !self.lineage.is_here() {
            return Err(Error::Forked);
        }
        leases.reserve(spans.len());
        if self.count_many(spans, access, leases).is_none() {
            for lease in leases.drain(before..) {
                self.take_back(ManuallyDrop::new(lease).slot);
            }
        }
        for &span in &spans[leases.len() - before..] {
            let lease = match self.hit(span, access) {
                Some(lease) => Ok(lease),
                None => self.miss(span, access, WaitMode::Progress),
            };
            match lease {
                Ok(lease) => leases.push(lease),
                Err(error) => {
                    leases.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Leases of the first of them, as many as are there; none, and then what is in `leases` is no lease, when something of that has
    /// changed meanwhile.
    pub(super) fn count_many<'c>(
        &'c self,
        spans: &[Span],
        access: Access,
        leases: &mut Vec<Lease<'c, R>>,
    ) -> Option<()> {
        let before = leases.len();
        let mut seen = [Observation::NOTHING; AT_ONCE];
        let mut changes = BatchChanges { descriptors: DescriptorSet::EMPTY, sequence: 0 };
        for spans in spans.chunks(AT_ONCE) {
            let first = leases.len();
            self.count_hinted(spans, access, leases, &mut seen);
            let hinted = leases.len() - first;
            let all = seen[..hinted].iter().fold(Observation::NOTHING, |all, one| all.and_also(*one));
            // The sequences are read before the check that the leases are live, which shows changes applied by then.
            changes.include(self, all.descriptors());
            // As by the swap that counts a single one: whoever ends one of them has seen that it is counted, or is seen here.
            fence(Ordering::SeqCst);
            let is_unchanged = |(lease, seen): (&Lease<'_, R>, &Observation)| {
                self.slots[lease.slot as usize].is_unchanged(*seen)
            };
            if !leases[first..].iter().zip(&seen).all(is_unchanged) {
                return None;
            }
            for &span in &spans[hinted..] {
                let Some(CountedLease { slot, seen, key, .. }) = self.count_lease(span, access) else {
                    break;
                };
                leases.push(self.lease_by(slot, key));
                changes.include(self, seen.descriptors());
                if !self.slots[slot as usize].is_unchanged(seen) {
                    return None;
                }
            }
            if leases.len() - first < spans.len() {
                break;
            }
        }
        let BatchChanges { descriptors, sequence } = changes;
        let stands = |lease: &Lease<'_, R>| self.slots[lease.slot as usize].is_live();
        let is_settled = || {
            self.watch.as_ref().is_some_and(|watch| watch.settle(descriptors))
                && leases[before..].iter().all(stands)
        };
        let unwatched = descriptors == DescriptorSet::EMPTY;
        (unwatched || self.unchanged_since(descriptors, sequence) || is_settled()).then_some(())
    }

    /// Counts leases of the first of them, as many as this thread has found there before, and notes what it has seen of each. A
    /// fence has to follow, and then a look whether they are still what was seen.
    fn count_hinted<'c>(
        &'c self,
        spans: &[Span],
        access: Access,
        leases: &mut Vec<Lease<'c, R>>,
        seen: &mut [Observation; AT_ONCE],
    ) {
        let Some(own) = self.counts.own() else { return };
        // For as many as there is room for, which is for all.
        let room = leases.spare_capacity_mut();
        let mut count = 0;
        for ((&span, place), seen) in spans.iter().zip(room).zip(seen) {
            let Some((slot, there, key)) = self.look_up_hint(own, span, access) else { break };
            own.note(slot);
            *seen = there;
            place.write(self.lease_by(slot, key));
            count += 1;
        }
        let length = leases.len() + count;
        // SAFETY: so many have been written behind those that were there.
        unsafe { leases.set_len(length) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::register::cache::Budget;
    use crate::register::fake::Fake;
    use crate::register::{MonitorMode, Overlap};

    /// A batch in quiet memory must not look like one in memory that changes: it would wait for the monitor each time.
    #[test]
    fn descriptors_included_one_by_one_have_the_sequence_of_all() {
        let fake = Arc::new(Fake::new(Overlap::Free));
        let budget = Budget { regions: 1, bytes: 4096 };
        let shared = CacheShared::new(fake, budget, MonitorMode::Strict.watch()).expect("there is memory");
        let [first, both, all] = [0b001, 0b011, 0b111].map(DescriptorSet::from_bits);
        loop {
            let mut changes = BatchChanges { descriptors: DescriptorSet::EMPTY, sequence: 0 };
            let before = shared.sequence(all);
            for set in [first, both, all, first] {
                changes.include(&shared, set);
            }
            assert_eq!(changes.descriptors, all);
            // Otherwise the memory of another thread changes meanwhile.
            if before.is_multiple_of(2) && shared.sequence(all) == before {
                assert_eq!(changes.sequence, before);
                break;
            }
        }
    }
}
