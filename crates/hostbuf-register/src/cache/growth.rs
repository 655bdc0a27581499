//! How much more than it asks for a request gets, when it is for a range that grows step by step.

use crate::os::memory;
use crate::span::Span;

/// How a range has grown from what is registered of it: the longest that was there, by the sides that it was left behind on.
#[derive(Default)]
pub(super) struct Growth {
    left: usize,
    right: usize,
    both: usize,
}

impl Growth {
    /// There was `other`, made when `asked` was asked for. Where that is part of what is asked for now, it is the same range
    /// that grows, and all of it counts; else a window has moved on, and what it has in common with the old one does.
    pub(super) fn from(&mut self, other: Span, asked: Span, span: Span) {
        let longest = match (other.start() > span.start(), other.end() < span.end()) {
            (false, false) => return,
            (true, false) => &mut self.left,
            (false, true) => &mut self.right,
            (true, true) => &mut self.both,
        };
        let common = other.end().min(span.end()) - other.start().max(span.start());
        *longest = (*longest).max(if span.contains(asked) { other.len() } else { common });
    }

    /// `span` with as much room for more as there was, on the sides to which it grows, inside `around`.
    pub(super) fn to(&self, span: Span, around: Span) -> Span {
        let before = span.start().saturating_sub(around.start());
        let behind = around.end().saturating_sub(span.end());
        let more = |longest: usize| (2 * longest).saturating_sub(span.len());
        let (left, right) = match (self.left, self.right, self.both) {
            (left @ 1.., 0, 0) => (more(left).min(before), 0),
            (0, right @ 1.., 0) => (0, more(right).min(behind)),
            (0, 0, 0) => (0, 0),
            (left, right, both) => {
                let more = more(both.max(left).max(right));
                // By halves of whole pages, and what one side has no room for goes to the other.
                let half = (more / 2).next_multiple_of(memory::page_size() as usize).min(more);
                let left = half.max(more.saturating_sub(behind)).min(before);
                (left, (more - left).min(behind))
            }
        };
        Span::new(span.start() - left, left + span.len() + right).unwrap_or(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn pages(start: usize, count: usize) -> Span {
        Span::new(start * PAGE, count * PAGE).unwrap()
    }

    fn grown(others: &[(Span, Span)], span: Span) -> Span {
        let mut grown = Growth::default();
        others.iter().for_each(|&(other, asked)| grown.from(other, asked, span));
        grown.to(span, pages(100, 100))
    }

    #[test]
    fn a_range_doubles_on_the_side_to_which_it_grows() {
        let same = |span| (span, span);
        assert_eq!(grown(&[], pages(150, 3)), pages(150, 3));
        assert_eq!(grown(&[same(pages(150, 8))], pages(150, 9)), pages(150, 16));
        assert_eq!(grown(&[same(pages(150, 8))], pages(149, 9)), pages(142, 16));
        assert_eq!(grown(&[same(pages(150, 8))], pages(149, 10)), pages(146, 16));
        // More than twice is asked for.
        assert_eq!(grown(&[same(pages(150, 8))], pages(150, 20)), pages(150, 20));
        // What one side has no room for goes to the other.
        assert_eq!(grown(&[same(pages(102, 20))], pages(101, 22)), pages(100, 40));
        assert_eq!(grown(&[same(pages(190, 9))], pages(189, 11)), pages(182, 18));
    }

    #[test]
    fn a_moving_window_counts_only_its_overlap_with_the_last() {
        let (other, asked) = (pages(140, 30), pages(140, 8));
        assert_eq!(grown(&[(other, asked)], pages(163, 8)), pages(163, 14));
        // One that holds what was asked for before grows, however far the registration reaches back.
        assert_eq!(grown(&[(pages(140, 20), pages(150, 10))], pages(150, 11)), pages(150, 40));
    }
}
