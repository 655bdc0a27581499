//! Which ranges are watched: sorted, apart, and made once, since the monitor changes it and may not allocate.

use std::time::Instant;

use super::recent::{Pages, Recent};
use super::strays::Strays;
use crate::span::Span;

/// The most ranges. The kernel gives up at about as many mappings.
const MOST: usize = 1 << 15;
const MOST_REQUESTS: usize = 64;

#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
    /// Pages of it have been given back.
    discarded: bool,
}

pub(super) struct Armed {
    ranges: Vec<Range>,
    /// Requests that are under way, and whether a change has come by meanwhile.
    requests: [Option<(Span, bool)>; MOST_REQUESTS],
    /// What the kernel may watch beside the ranges.
    strays: Strays,
    recent: Recent,
}

impl Armed {
    pub(super) fn new() -> Armed {
        let ranges = Vec::with_capacity(MOST);
        Armed { ranges, requests: [None; MOST_REQUESTS], strays: Strays::new(), recent: Recent::new() }
    }

    /// Notes that somebody is about to watch the mappings around `span`. `None`: too many do.
    pub(super) fn begin(&mut self, span: Span) -> Option<usize> {
        let free = self.requests.iter().position(Option::is_none)?;
        self.requests[free] = Some((span, false));
        Some(free)
    }

    /// The request is about so much.
    pub(super) fn extend(&mut self, request: usize, whole: Span) {
        if let Some((span, _)) = self.requests[request].as_mut() {
            *span = whole;
        }
    }

    /// Whether nothing of the span has changed since [`begin`](Armed::begin), as far as it has been heard of.
    pub(super) fn end(&mut self, request: usize) -> bool {
        self.requests[request].take().is_some_and(|(_, changed)| !changed)
    }

    fn disturb(&mut self, span: Span) {
        for (other, changed) in self.requests.iter_mut().flatten() {
            *changed |= other.overlaps(span);
        }
    }

    fn first_behind(&self, address: usize) -> usize {
        self.ranges.partition_point(|r| r.end <= address)
    }

    /// The watched range that `span` lies in, if it does, and whether pages of it have been given back.
    pub(super) fn around(&self, span: Span) -> Option<(Span, bool)> {
        let range = self.ranges.get(self.first_behind(span.start()))?;
        let whole = Span::new(range.start, range.end - range.start).ok()?;
        whole.contains(span).then_some((whole, range.discarded))
    }

    /// Adds a range, which swallows those that it touches. `false`: there is no room.
    pub(super) fn add(&mut self, span: Span) -> bool {
        let (mut start, mut end, mut discarded) = (span.start(), span.end(), false);
        let from = self.ranges.partition_point(|r| r.end < start);
        let mut until = from;
        while let Some(range) = self.ranges.get(until).filter(|r| r.start <= end) {
            (start, end) = (start.min(range.start), end.max(range.end));
            discarded |= range.discarded;
            until += 1;
        }
        if from == until && self.ranges.len() == MOST {
            return false;
        }
        let whole = Range { start, end, discarded };
        if from == until {
            self.ranges.insert(from, whole);
        } else {
            self.ranges[from] = whole;
            self.ranges.drain(from + 1..until);
        }
        true
    }

    /// Takes a range out. What lies beside it may be the rest of a mapping that has grown.
    pub(super) fn remove(&mut self, span: Span) {
        self.disturb(span);
        for edge in [span.start().wrapping_sub(1), span.end()] {
            if let Ok(edge) = Span::new(edge, 1) {
                self.strays.add(edge);
            }
        }
        let mut at = self.first_behind(span.start());
        while let Some(&range) = self.ranges.get(at).filter(|r| r.start < span.end()) {
            let left = (range.start < span.start()).then_some(Range { end: span.start(), ..range });
            let right = (span.end() < range.end).then_some(Range { start: span.end(), ..range });
            match (left, right) {
                (None, None) => {
                    self.ranges.remove(at);
                    continue;
                }
                (Some(part), None) | (None, Some(part)) => self.ranges[at] = part,
                (Some(left), Some(right)) => {
                    self.ranges[at] = left;
                    // Without room the part behind is forgotten: it is watched again when it is asked for.
                    if self.ranges.len() < MOST {
                        self.ranges.insert(at + 1, right);
                        at += 1;
                    }
                }
            }
            at += 1;
        }
    }

    /// The same, and it is not mapped any more.
    pub(super) fn unmapped(&mut self, span: Span) {
        self.remove(span);
        self.recent.unmapped(span);
    }

    /// What is known about the pages of a range, as to their being given back.
    pub(super) fn pages(&self, span: Span) -> Pages {
        self.recent.pages(span, Instant::now())
    }

    /// Whoever changed the address space when that time had come is done.
    pub(super) fn barrier(&mut self, begun: Instant) {
        self.recent.barrier(begun);
    }

    /// Notes that pages are being given back.
    pub(super) fn discard(&mut self, span: Span) {
        self.recent.add(span, Instant::now());
        let at = self.first_behind(span.start());
        for range in self.ranges[at..].iter_mut().take_while(|r| r.start < span.end()) {
            range.discarded = true;
        }
    }

    /// A mapping has come here that took its watching along. By now something else may be there: nobody may count on it.
    pub(super) fn arrived(&mut self, span: Span) {
        self.strays.add(span);
    }

    /// Whether the kernel may watch any of it.
    pub(super) fn may_be_watched(&self, span: Span) -> bool {
        let range = self.ranges.get(self.first_behind(span.start()));
        range.is_some_and(|r| r.start < span.end()) || self.strays.overlaps(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against one flag for each of a few addresses.
        #[test]
        fn ranges_are_what_a_row_of_flags_says(steps in proptest::collection::vec((0u8..3, 1usize..60, 1usize..20), 1..80)) {
            let mut armed = Armed::new();
            let mut flags = [false; 100];
            for (what, start, length) in steps {
                let span = Span::new(start, length).unwrap();
                match what {
                    0 => prop_assert!(armed.add(span)),
                    1 => armed.remove(span),
                    _ => armed.discard(span),
                }
                if what < 2 {
                    flags[start..start + length].fill(what == 0);
                }
                for at in 1..99 {
                    let one = Span::new(at, 1).unwrap();
                    prop_assert_eq!(armed.around(one).is_some(), flags[at], "{}", at);
                    if let Some((whole, _)) = armed.around(one) {
                        prop_assert!(flags[whole.start()..whole.end()].iter().all(|f| *f));
                        prop_assert!(!flags[whole.start() - 1] && !flags[whole.end()]);
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_given_back_is_remembered_with_its_range() {
        let span = |a, n| Span::new(a, n).unwrap();
        let mut armed = Armed::new();
        armed.add(span(10, 10));
        armed.add(span(30, 10));
        armed.discard(span(12, 2));
        assert_eq!(
            (armed.around(span(10, 1)).unwrap().1, armed.around(span(30, 1)).unwrap().1),
            (true, false)
        );
        armed.remove(span(10, 10));
        armed.add(span(10, 10));
        assert!(!armed.around(span(10, 1)).unwrap().1);
    }
}
