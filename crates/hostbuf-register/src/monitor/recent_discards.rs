//! Recently discarded pages.
//!
//! The kernel reports a discard (MADV_DONTNEED) before it takes the pages, and the discarding
//! thread continues when the event has been read. The old pages remain for a while, and no event
//! reports their removal.
//!
//! ```text
//!   discard:   event -- woken -- mmap_changing - 1 --|-- mmap_lock --- takes the pages ---|
//!   monitor:     read
//!   request:                        seen quiet |-- GAP --|----------- barrier ----------|  settled
//! ```
//!
//! The discarding thread decrements `mmap_changing` itself when it runs again
//! (`userfaultfd_event_wait_completion`), and then takes the lock for reading
//! (`madvise_dontneed_free`). Between the two are a few dozen instructions. The thread may lose its
//! core there: it may be preempted or, in kernels with voluntary preemption, reschedule when it
//! takes the lock. The gap covers that time. Taking the pages may take long; the barrier waits for
//! it, since it takes the same lock for writing.

use std::time::{Duration, Instant};

use super::descriptor_set::DescriptorSet;
use crate::span::Span;

/// The time allowed for a thread between the decrement of `mmap_changing` and taking the lock. In
/// the experiment of docs/figures.md none of 82 000 discards left old pages after a barrier, even
/// without a gap.
pub(super) const GAP: Duration = Duration::from_millis(1);
/// The largest number of recorded discards.
const MOST: usize = 256;

/// A range whose pages are being discarded.
#[derive(Clone, Copy)]
struct Discard {
    span: Span,
    /// The descriptors that have reported the discard.
    descriptors: DescriptorSet,
    /// The time at which its last event was read.
    read: Instant,
    /// The time at which those descriptors were first seen quiet afterwards.
    quiet: Option<Instant>,
}

/// The discards whose pages may not be gone yet. All memory is allocated at construction, since the
/// monitor may not allocate.
pub(super) struct RecentDiscards {
    discards: [Option<Discard>; MOST],
}

/// The state of a range's pages with regard to discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiscardState {
    /// No discard is in progress.
    Settled,
    /// The old pages may still be there: these descriptors have to be seen quiet first.
    Going(DescriptorSet),
    /// The old pages may still be there: the discarding thread takes the lock within this time.
    Gap(Duration),
    /// The gap is over: the pages are settled after one barrier.
    Due,
}

impl RecentDiscards {
    /// Makes an empty record.
    pub(super) fn new() -> RecentDiscards {
        RecentDiscards { discards: [None; MOST] }
    }

    /// Records a discard whose event has just been read. If there is no room, the range is merged
    /// with another one, so that too much counts as discarded but never too little.
    pub(super) fn add(&mut self, span: Span, descriptors: DescriptorSet, now: Instant) {
        let overlapping = self.discards.iter().flatten().position(|d| d.span.overlaps(span));
        if overlapping.is_none()
            && let Some(free) = self.discards.iter_mut().find(|entry| entry.is_none())
        {
            *free = Some(Discard { span, descriptors, read: now, quiet: None });
            return;
        }
        let nearest =
            self.discards.iter_mut().flatten().min_by_key(|d| d.span.hull(span).len() - d.span.len());
        if let Some(entry) = nearest {
            let (span, descriptors) = (entry.span.hull(span), entry.descriptors.with(descriptors));
            *entry = Discard { span, descriptors, read: now, quiet: None };
        }
    }

    /// Records at `now` that each of `descriptors` was quiet at some time after `begun`.
    pub(super) fn quiet(&mut self, descriptors: DescriptorSet, begun: Instant, now: Instant) {
        for entry in self.discards.iter_mut().flatten() {
            if entry.quiet.is_none() && entry.read <= begun && descriptors.contains(entry.descriptors) {
                entry.quiet = Some(now);
            }
        }
    }

    /// Records that the range is no longer mapped.
    pub(super) fn unmapped(&mut self, span: Span) {
        self.drop_those(|there| span.contains(there.span));
    }

    /// Returns the state of the pages of `span` at `now`.
    pub(super) fn pages(&self, span: Span, now: Instant) -> DiscardState {
        let (mut going, mut gap, mut due) = (DescriptorSet::EMPTY, Duration::ZERO, false);
        for entry in self.discards.iter().flatten().filter(|d| d.span.overlaps(span)) {
            due = true;
            match entry.quiet {
                None => going = going.with(entry.descriptors),
                Some(quiet) => gap = gap.max(GAP.saturating_sub(now.saturating_duration_since(quiet))),
            }
        }
        match () {
            () if going != DescriptorSet::EMPTY => DiscardState::Going(going),
            () if gap > Duration::ZERO => DiscardState::Gap(gap),
            () if due => DiscardState::Due,
            () => DiscardState::Settled,
        }
    }

    /// Records a barrier that began at `begun`.
    pub(super) fn barrier(&mut self, begun: Instant) {
        self.drop_those(|there| {
            there.quiet.is_some_and(|quiet| begun.saturating_duration_since(quiet) >= GAP)
        });
    }

    fn drop_those(&mut self, those: impl Fn(&Discard) -> bool) {
        for entry in &mut self.discards {
            if entry.as_ref().is_some_and(&those) {
                *entry = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, length: usize) -> Span {
        Span::new(start, length).unwrap()
    }

    #[test]
    fn pages_are_settled_after_quiet_a_gap_and_a_barrier() {
        let (mut recent, now) = (RecentDiscards::new(), Instant::now());
        let (one, other) = (DescriptorSet::of(1), DescriptorSet::of(2));
        recent.add(span(100, 10), one, now);
        assert_eq!(recent.pages(span(109, 5), now), DiscardState::Going(one));
        assert_eq!(recent.pages(span(110, 5), now), DiscardState::Settled);
        // The descriptor has not been seen quiet since: neither a later barrier, nor another quiet
        // descriptor, nor an earlier quiet state settles the pages.
        recent.barrier(now + 100 * GAP);
        recent.quiet(other, now + GAP, now + GAP);
        recent.quiet(one, now.checked_sub(GAP).unwrap_or(now - Duration::from_nanos(1)), now + GAP);
        assert_eq!(recent.pages(span(100, 1), now + 100 * GAP), DiscardState::Going(one));
        let quiet = now + GAP;
        recent.quiet(one.with(other), now, quiet);
        assert_eq!(recent.pages(span(100, 1), quiet + GAP / 4), DiscardState::Gap(GAP - GAP / 4));
        recent.barrier(quiet + GAP / 2);
        assert_eq!(recent.pages(span(100, 1), quiet + GAP), DiscardState::Due);
        recent.barrier(quiet + GAP);
        assert_eq!(recent.pages(span(100, 1), quiet + GAP), DiscardState::Settled);
        recent.add(span(100, 10), one, now);
        recent.unmapped(span(101, 20));
        assert_eq!(recent.pages(span(100, 1), now), DiscardState::Going(one));
        recent.unmapped(span(99, 20));
        assert_eq!(recent.pages(span(100, 1), now), DiscardState::Settled);
    }

    #[test]
    fn a_second_discard_restarts_the_wait() {
        let (mut recent, now) = (RecentDiscards::new(), Instant::now());
        let one = DescriptorSet::of(0);
        recent.add(span(100, 10), one, now);
        recent.quiet(one, now, now);
        recent.add(span(105, 10), one, now + GAP);
        recent.barrier(now + 2 * GAP);
        assert_eq!(recent.pages(span(100, 1), now + 2 * GAP), DiscardState::Going(one));
    }

    #[test]
    fn no_discard_is_lost_without_room() {
        let (mut recent, now) = (RecentDiscards::new(), Instant::now());
        let one = DescriptorSet::of(7);
        let spans = (0..4 * MOST).map(|n| span(1 + (n * 7919) % 100_000, 1 + n % 5));
        spans.clone().for_each(|span| recent.add(span, one, now));
        assert!(spans.clone().all(|span| recent.pages(span, now) == DiscardState::Going(one)));
    }
}
