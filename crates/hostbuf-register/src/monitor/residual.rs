//! Where memory may lie that the kernel still watches and the monitor does not count on: mappings take the watching with them
//! when they move, and when they grow where they are, which nobody tells.
//!
//! Always too much rather than too little: it is used once, to let go of everything at the end.

use crate::span::Span;

/// The most ranges; beyond it those that lie next to each other become one, with what is between them.
const MOST: usize = 1024;

/// Sorted, apart, and made once.
pub(super) struct ResidualRanges {
    spans: Vec<Span>,
}

impl ResidualRanges {
    pub(super) fn new() -> ResidualRanges {
        ResidualRanges { spans: Vec::with_capacity(MOST) }
    }

    pub(super) fn add(&mut self, span: Span) {
        let from = self.spans.partition_point(|s| s.end() < span.start());
        let until = from + self.spans[from..].partition_point(|s| s.start() <= span.end());
        if from < until {
            self.spans[from] = span.hull(self.spans[from]).hull(self.spans[until - 1]);
            self.spans.drain(from + 1..until);
            return;
        }
        if self.spans.len() == MOST {
            // With the nearer neighbour.
            let before = from.checked_sub(1).map(|at| (span.start() - self.spans[at].end(), at));
            let behind = self.spans.get(from).map(|s| (s.start() - span.end(), from));
            if let Some((_, at)) = before.into_iter().chain(behind).min() {
                self.spans[at] = self.spans[at].hull(span);
            }
            return;
        }
        self.spans.insert(from, span);
    }

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
        // In an order that is none.
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
