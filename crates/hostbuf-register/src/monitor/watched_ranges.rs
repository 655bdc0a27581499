//! The record of the watched ranges, and of what is known about their pages.

use std::time::Instant;

use super::busy_ranges::BusyRanges;
use super::descriptor_set::DescriptorSet;
use super::recent_discards::{DiscardState, RecentDiscards};
use super::residual::ResidualRanges;
use crate::span::Span;

/// The largest number of ranges. The kernel's limit of mappings has the same order of magnitude.
const MOST: usize = 1 << 15;
/// The largest number of concurrent requests that begin to watch memory.
const MOST_REQUESTS: usize = 64;

/// A range that one userfaultfd watches.
#[derive(Clone, Copy)]
struct WatchedRange {
    start: usize,
    end: usize,
    /// The number of the userfaultfd that watches the range.
    descriptor: usize,
    /// True if pages of it have been discarded.
    discarded: bool,
}

/// The watched memory around a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WatchedSpan {
    pub(super) whole: Span,
    pub(super) descriptors: DescriptorSet,
    /// True if pages of it have been discarded.
    pub(super) discarded: bool,
}

/// The watched ranges, sorted and disjoint. All memory is allocated at construction, since the
/// monitor changes the record and may not allocate.
pub(super) struct WatchedRanges {
    ranges: Vec<WatchedRange>,
    /// The requests in progress, and whether their memory has changed meanwhile.
    requests: [Option<(Span, bool)>; MOST_REQUESTS],
    /// Other memory that the kernel may watch.
    residual: ResidualRanges,
    recent: RecentDiscards,
    pub(super) busy: BusyRanges,
}

impl WatchedRanges {
    /// Makes an empty record.
    pub(super) fn new() -> WatchedRanges {
        let ranges = Vec::with_capacity(MOST);
        WatchedRanges {
            ranges,
            requests: [None; MOST_REQUESTS],
            residual: ResidualRanges::new(),
            recent: RecentDiscards::new(),
            busy: BusyRanges::new(),
        }
    }

    /// Records a request that begins to watch the mappings around `span`. Returns `None` if there
    /// are too many.
    pub(super) fn begin(&mut self, span: Span) -> Option<usize> {
        let free = self.requests.iter().position(Option::is_none)?;
        self.requests[free] = Some((span, false));
        Some(free)
    }

    /// Extends a request to whole mappings.
    pub(super) fn extend(&mut self, request: usize, whole: Span) {
        if let Some((span, _)) = self.requests[request].as_mut() {
            *span = whole;
        }
    }

    /// Ends a request. Returns whether no change of its memory has been reported since
    /// [`begin`](WatchedRanges::begin).
    pub(super) fn end(&mut self, request: usize) -> bool {
        self.requests[request].take().is_some_and(|(_, changed)| !changed)
    }

    /// Records a change for the requests in progress.
    fn disturb(&mut self, span: Span) {
        for (other, changed) in self.requests.iter_mut().flatten() {
            *changed |= other.overlaps(span);
        }
    }

    /// Returns the position of the first range that ends behind an address.
    fn first_behind(&self, address: usize) -> usize {
        self.ranges.partition_point(|r| r.end <= address)
    }

    /// Returns the watched memory that contains `span`, if it is watched: one range or several
    /// adjacent ones.
    pub(super) fn around(&self, span: Span) -> Option<WatchedSpan> {
        let from = self.first_behind(span.start());
        let first = self.ranges.get(from).filter(|range| range.start <= span.start())?;
        let (mut end, mut descriptors, mut discarded) =
            (first.end, DescriptorSet::of(first.descriptor), first.discarded);
        for range in &self.ranges[from + 1..] {
            if end >= span.end() || range.start != end {
                break;
            }
            end = range.end;
            descriptors = descriptors.with(DescriptorSet::of(range.descriptor));
            discarded |= range.discarded;
        }
        let whole = Span::new(first.start, end - first.start).ok()?;
        whole.contains(span).then_some(WatchedSpan { whole, descriptors, discarded })
    }

    /// Returns the descriptor of a watched range that overlaps or touches `span`.
    pub(super) fn beside(&self, span: Span) -> Option<usize> {
        let range = self.ranges.get(self.ranges.partition_point(|r| r.end < span.start()))?;
        (range.start <= span.end()).then_some(range.descriptor)
    }

    /// Returns the descriptor of a watched range that overlaps `span`.
    pub(super) fn overlapping(&self, span: Span) -> Option<usize> {
        let range = self.ranges.get(self.first_behind(span.start()))?;
        (range.start < span.end()).then_some(range.descriptor)
    }

    /// Returns the number of watched ranges.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Adds a range that a userfaultfd watches, and joins it with touching ranges of the same
    /// userfaultfd. Returns false if there is no room.
    pub(super) fn add(&mut self, span: Span, descriptor: usize) -> bool {
        // Adding a range splits at most two ranges.
        if self.ranges.len() + 2 >= MOST {
            return false;
        }
        let discarded = self.cut(span) | self.busy.descriptor_of(span).is_some();
        let mut at = self.first_behind(span.start());
        let mut whole = WatchedRange { start: span.start(), end: span.end(), descriptor, discarded };
        let joins = |one: &WatchedRange, edge: usize| {
            one.descriptor == descriptor && (one.start == edge || one.end == edge)
        };
        if let Some(behind) = self.ranges.get(at).copied().filter(|r| joins(r, span.end())) {
            (whole.end, whole.discarded) = (behind.end, whole.discarded | behind.discarded);
            self.ranges.remove(at);
        }
        if let Some(before) =
            at.checked_sub(1).map(|before| self.ranges[before]).filter(|r| joins(r, span.start()))
        {
            (whole.start, whole.discarded) = (before.start, whole.discarded | before.discarded);
            at -= 1;
            self.ranges.remove(at);
        }
        self.ranges.insert(at, whole);
        true
    }

    /// Removes a range. The memory beside it may be the rest of a mapping that has grown.
    pub(super) fn remove(&mut self, span: Span) {
        self.disturb(span);
        for edge in [span.start().wrapping_sub(1), span.end()] {
            if let Ok(edge) = Span::new(edge, 1) {
                self.residual.add(edge);
            }
        }
        self.cut(span);
    }

    /// Removes `span` from the ranges. Returns whether pages of an affected range had been
    /// discarded.
    fn cut(&mut self, span: Span) -> bool {
        let mut discarded = false;
        let mut at = self.first_behind(span.start());
        while let Some(&range) = self.ranges.get(at).filter(|r| r.start < span.end()) {
            discarded |= range.discarded;
            let left = (range.start < span.start()).then_some(WatchedRange { end: span.start(), ..range });
            let right = (span.end() < range.end).then_some(WatchedRange { start: span.end(), ..range });
            match (left, right) {
                (None, None) => {
                    self.ranges.remove(at);
                    continue;
                }
                (Some(part), None) | (None, Some(part)) => self.ranges[at] = part,
                (Some(left), Some(right)) => {
                    self.ranges[at] = left;
                    // Without room the part behind is dropped: a request for it watches it again.
                    if self.ranges.len() < MOST {
                        self.ranges.insert(at + 1, right);
                        at += 1;
                    }
                }
            }
            at += 1;
        }
        discarded
    }

    /// Removes a range that is no longer mapped.
    pub(super) fn unmapped(&mut self, span: Span) {
        self.remove(span);
        self.recent.unmapped(span);
        self.busy.unmapped(span);
    }

    /// Returns the state of a range's pages with regard to discards.
    pub(super) fn pages(&self, span: Span) -> DiscardState {
        self.recent.pages(span, Instant::now())
    }

    /// Records that each of `descriptors` was seen quiet after `begun`.
    pub(super) fn quiet(&mut self, descriptors: DescriptorSet, begun: Instant) {
        self.recent.quiet(descriptors, begun, Instant::now());
    }

    /// Records that the holders of the address space's lock at `begun` have released it.
    pub(super) fn barrier(&mut self, begun: Instant) {
        self.recent.barrier(begun);
    }

    /// Records a discard that a userfaultfd has reported. Returns whether its range is busy.
    pub(super) fn discard(&mut self, span: Span, descriptor: usize) -> bool {
        let now = Instant::now();
        self.recent.add(span, DescriptorSet::of(descriptor), now);
        let at = self.first_behind(span.start());
        for range in self.ranges[at..].iter_mut().take_while(|r| r.start < span.end()) {
            range.discarded = true;
        }
        self.busy.discard(span, descriptor, now)
    }

    /// Records that a watched mapping has moved to `span`. It does not count as watched, since
    /// another mapping may have replaced it by now.
    pub(super) fn arrived(&mut self, span: Span) {
        self.residual.add(span);
    }

    /// Returns whether the kernel may watch a part of `span`.
    pub(super) fn may_be_watched(&self, span: Span) -> bool {
        let range = self.ranges.get(self.first_behind(span.start()));
        range.is_some_and(|r| r.start < span.end()) || self.residual.overlaps(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares the ranges with a model: the descriptor of each of a few addresses.
        #[test]
        fn ranges_agree_with_an_array_of_descriptors(
            steps in proptest::collection::vec((0usize..5, 1usize..60, 1usize..20), 1..80)
        ) {
            let mut ranges = WatchedRanges::new();
            let mut row = [None; 100];
            for (what, start, length) in steps {
                let span = Span::new(start, length).unwrap();
                match what {
                    0..3 => prop_assert!(ranges.add(span, what)),
                    3 => ranges.remove(span),
                    _ => drop(ranges.discard(span, 0)),
                }
                if what < 4 {
                    row[start..start + length].fill((what < 3).then_some(what));
                }
                for at in 1..99 {
                    for length in [1, 5.min(100 - at)] {
                        let span = Span::new(at, length).unwrap();
                        let there = &row[at..at + length];
                        prop_assert_eq!(ranges.overlapping(span), there.iter().copied().flatten().next());
                        let around = ranges.around(span);
                        prop_assert_eq!(around.is_some(), there.iter().all(Option::is_some), "{}", at);
                        let Some(around) = around else { continue };
                        let set = |row: &[Option<usize>]| {
                            row.iter().flatten().fold(DescriptorSet::EMPTY, |set, &d| set.with(DescriptorSet::of(d)))
                        };
                        prop_assert_eq!(around.descriptors, set(there));
                        // These descriptors watch all of it, and it begins where another
                        // descriptor's range ends.
                        let whole = &row[around.whole.start()..around.whole.end()];
                        prop_assert!(whole.iter().all(Option::is_some));
                        prop_assert_eq!(around.descriptors, set(whole));
                        prop_assert_ne!(row[around.whole.start() - 1], row[around.whole.start()]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_discard_is_recorded_with_its_range() {
        let span = |a, n| Span::new(a, n).unwrap();
        let discarded = |ranges: &WatchedRanges, at| ranges.around(span(at, 1)).unwrap().discarded;
        let mut ranges = WatchedRanges::new();
        ranges.add(span(10, 10), 0);
        ranges.add(span(30, 10), 1);
        ranges.discard(span(12, 2), 0);
        assert_eq!((discarded(&ranges, 10), discarded(&ranges, 30)), (true, false));
        // A range that replaces or touches it counts as discarded too.
        ranges.add(span(5, 10), 2);
        ranges.add(span(20, 5), 0);
        assert_eq!((discarded(&ranges, 5), discarded(&ranges, 24)), (true, true));
        ranges.remove(span(1, 50));
        ranges.add(span(10, 10), 0);
        assert!(!discarded(&ranges, 10));
        assert_eq!(
            (ranges.beside(span(20, 1)), ranges.beside(span(1, 9)), ranges.beside(span(22, 1))),
            (Some(0), Some(0), None)
        );
    }

    #[test]
    fn a_busy_range_counts_as_discarded_until_it_is_unmapped() {
        let page = Span::new(0x1000, 0x1000).unwrap();
        let mut ranges = WatchedRanges::new();
        let discard = |ranges: &mut WatchedRanges| while !ranges.discard(page, 0) {};
        ranges.add(page, 0);
        discard(&mut ranges);
        ranges.unmapped(page);
        assert_eq!(ranges.busy.give_up(0, Instant::now()), None);
        discard(&mut ranges);
        assert_eq!(ranges.busy.give_up(0, Instant::now()), Some(page));
        ranges.remove(page);
        ranges.add(page, 0);
        assert!(ranges.around(page).unwrap().discarded);
        ranges.unmapped(page);
        ranges.add(page, 0);
        assert!(!ranges.around(page).unwrap().discarded);
    }
}
