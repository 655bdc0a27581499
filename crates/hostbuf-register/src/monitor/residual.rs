//! Memory that the kernel may still watch although the monitor does not rely on it.
//!
//! A mapping stays watched when it moves or grows, and the kernel does not report growth in place.
//! The record may contain too much but never too little: it is used once, to unwatch everything
//! when the monitor stops.

use crate::span::Span;

/// The largest number of ranges. Beyond it a new range is joined with its nearer neighbour,
/// including the gap.
const MOST: usize = 1024;

/// The residual ranges, sorted and disjoint. All memory is allocated at construction.
pub(super) struct ResidualRanges {
    spans: Vec<Span>,
}

impl ResidualRanges {
    /// Makes an empty record.
    pub(super) fn new() -> ResidualRanges {
        ResidualRanges { spans: Vec::with_capacity(MOST) }
    }

    /// Adds a range.
    pub(super) fn add(&mut self, span: Span) {
        let from = self.spans.partition_point(|s| s.end() < span.start());
        let until = from + self.spans[from..].partition_point(|s| s.start() <= span.end());
        if from < until {
            self.spans[from] = span.hull(self.spans[from]).hull(self.spans[until - 1]);
            self.spans.drain(from + 1..until);
            return;
        }
        if self.spans.len() == MOST {
            // There is no room, so the range joins its nearer neighbour.
            let before = from.checked_sub(1).map(|at| (span.start() - self.spans[at].end(), at));
            let behind = self.spans.get(from).map(|s| (s.start() - span.end(), from));
            if let Some((_, at)) = before.into_iter().chain(behind).min() {
                self.spans[at] = self.spans[at].hull(span);
            }
            return;
        }
        self.spans.insert(from, span);
    }

    /// Returns whether `span` overlaps a residual range.
    pub(super) fn overlaps(&self, span: Span) -> bool {
        let at = self.spans.partition_point(|s| s.end() <= span.start());
        self.spans.get(at).is_some_and(|s| s.start() < span.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_range_is_lost_without_room() {
        let mut residual = ResidualRanges::new();
        let room = residual.spans.capacity();
        // In a scattered order.
        let spans = (0..4 * MOST).map(|n| Span::new(1 + (n * 2_654_435_761) % (1 << 30), 1 + n % 5).unwrap());
        for span in spans.clone() {
            residual.add(span);
        }
        assert!(spans.clone().all(|span| residual.overlaps(span)));
        assert!(residual.spans.windows(2).all(|two| two[0].end() < two[1].start()));
        assert_eq!((residual.spans.len(), residual.spans.capacity()), (MOST, room));
    }

    #[test]
    fn without_room_a_span_joins_its_nearer_neighbour() {
        let span = |start| Span::new(start, 1).unwrap();
        for near in [110, 190] {
            let mut residual = ResidualRanges::new();
            (1..=MOST).for_each(|n| residual.add(span(100 * n)));
            residual.add(span(near));
            assert!(residual.overlaps(span(near)) && !residual.overlaps(span(150)), "{near}");
        }
    }
}
