//! The registration of more than a request, for a range that grows step by step.

use super::cache_state::CacheState;
use super::slots::Slots;
use crate::span::{Access, Span};
use hostbuf_os::memory;

/// Returns a range around a request of `span` for a range that grows step by step, to either side
/// or to both: at least twice the length of the registrations that it replaces, so that all
/// registrations of a growing range have at most twice the length of the last. The result lies
/// inside `room`.
///
/// `replaced` is a registration that has been deregistered for the request, and the range that had
/// been requested for it.
///
/// To one side, the last registration has at most nearly twice the length of the final request, so
/// all together have four times that: the least that is possible if each registration is one piece
/// and the end is unknown (Chrobak, Kenyon-Mathieu, "Competitiveness via doubling", SIGACT News
/// 37(4), 2006: online bidding).
pub(super) fn grown_range<H>(
    state: &CacheState,
    slots: &Slots<H>,
    span: Span,
    access: Access,
    room: Span,
    replaced: Option<(Span, Span)>,
) -> Span {
    let mut growth = RangeGrowth::default();
    slots.overlapping(span, |slot| {
        let here = &slots[slot];
        if here.access() == access {
            let requested = state.details[slot.index()].requested;
            growth.add(here.span(), requested.unwrap_or(here.span()), span);
        }
    });
    if let Some((replaced, requested)) = replaced.filter(|(replaced, _)| replaced.overlaps(span)) {
        growth.add(replaced, requested, span);
    }
    let whole = growth.apply(span, room);
    if whole.contains(span) && room.contains(whole) { whole } else { span }
}

/// The growth of a range: the longest registration of it, by the sides on which the request exceeds
/// it.
#[derive(Default)]
struct RangeGrowth {
    left: usize,
    right: usize,
    both: usize,
}

impl RangeGrowth {
    /// Adds a registration of `other`, which was made for a request of `requested`. If `span`
    /// contains that request, the same range has grown, and all of `other` counts. Otherwise a
    /// window has moved on, and only their intersection counts.
    fn add(&mut self, other: Span, requested: Span, span: Span) {
        let longest = match (other.start() > span.start(), other.end() < span.end()) {
            (false, false) => return,
            (true, false) => &mut self.left,
            (false, true) => &mut self.right,
            (true, true) => &mut self.both,
        };
        let common = other.end().min(span.end()) - other.start().max(span.start());
        *longest = (*longest).max(if span.contains(requested) { other.len() } else { common });
    }

    /// Returns `span` extended on the sides to which it grows, inside `around`.
    fn apply(&self, span: Span, around: Span) -> Span {
        let before = span.start().saturating_sub(around.start());
        let behind = around.end().saturating_sub(span.end());
        let more = |longest: usize| (2 * longest).saturating_sub(span.len());
        let (left, right) = match (self.left, self.right, self.both) {
            (left @ 1.., 0, 0) => (more(left).min(before), 0),
            (0, right @ 1.., 0) => (0, more(right).min(behind)),
            (0, 0, 0) => (0, 0),
            (left, right, both) => {
                let more = more(both.max(left).max(right));
                // Each side gets half, in whole pages, and more if the other side has no room.
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
        let mut grown = RangeGrowth::default();
        others.iter().for_each(|&(other, asked)| grown.add(other, asked, span));
        grown.apply(span, pages(100, 100))
    }

    #[test]
    fn a_range_doubles_on_the_side_to_which_it_grows() {
        let same = |span| (span, span);
        assert_eq!(grown(&[], pages(150, 3)), pages(150, 3));
        assert_eq!(grown(&[same(pages(150, 8))], pages(150, 9)), pages(150, 16));
        assert_eq!(grown(&[same(pages(150, 8))], pages(149, 9)), pages(142, 16));
        assert_eq!(grown(&[same(pages(150, 8))], pages(149, 10)), pages(146, 16));
        // The request is more than twice as long.
        assert_eq!(grown(&[same(pages(150, 8))], pages(150, 20)), pages(150, 20));
        // One side has no room for its half, which goes to the other side.
        assert_eq!(grown(&[same(pages(102, 20))], pages(101, 22)), pages(100, 40));
        assert_eq!(grown(&[same(pages(190, 9))], pages(189, 11)), pages(182, 18));
    }

    #[test]
    fn a_moving_window_counts_only_its_overlap_with_the_last() {
        let (other, asked) = (pages(140, 30), pages(140, 8));
        assert_eq!(grown(&[(other, asked)], pages(163, 8)), pages(163, 14));
        // A request that contains the earlier one grows, however far the registration extends
        // before it.
        assert_eq!(grown(&[(pages(140, 20), pages(150, 10))], pages(150, 11)), pages(150, 40));
    }
}
