//! Busy pages: pages that are discarded hundreds of times a second.
//!
//! While a discard is reported, the kernel cannot tell whether another change of memory of the same
//! userfaultfd is in progress. So a thread that discards one page without a pause (such as an
//! allocator's) would make all hits in that mapping wait. Such a page is not sent from: the monitor
//! stops watching it, the discarding thread runs at full speed, and hits in the rest of the mapping
//! do not wait.
//!
//! The kernel then splits the mapping, and an mremap over more than one part fails with EFAULT. The
//! part is therefore watched again after a second, which joins the mapping; if it is still busy, it
//! is given up once more. If the part has meanwhile merged with a neighbouring mapping, it remains
//! unwatched until a request needs memory there.

use std::time::{Duration, Instant};

use crate::span::Span;

/// The time window in which discards are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// The number of discards in one window from which on a range is busy.
const MANY: u32 = 32;
/// The time for which a busy range is not watched.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of ranges whose discards are counted.
const COUNTED: usize = 32;
/// The largest number of unwatched ranges, each of which costs the process two mappings.
const MOST_GIVEN_UP: usize = 256;

/// The discards of one range.
#[derive(Clone, Copy)]
struct DiscardCount {
    span: Span,
    descriptor: usize,
    begun: Instant,
    discards: u32,
}

/// The busy ranges of a process, watched or not. All memory is allocated at construction, since the
/// monitor may not allocate.
pub(super) struct BusyRanges {
    counts: [Option<DiscardCount>; COUNTED],
    given_up: Vec<(Span, usize, Instant)>,
    /// True while the monitor is stopping: no range is given up or watched again.
    closed: bool,
}

impl BusyRanges {
    pub(super) fn new() -> BusyRanges {
        BusyRanges { counts: [None; COUNTED], given_up: Vec::with_capacity(MOST_GIVEN_UP), closed: false }
    }

    /// Counts a discard. Returns whether its range is busy.
    pub(super) fn discard(&mut self, span: Span, descriptor: usize, now: Instant) -> bool {
        let is_it = |count: &Option<DiscardCount>| {
            count.is_some_and(|c| c.descriptor == descriptor && c.span.overlaps(span))
        };
        let at = self.counts.iter().position(is_it).or_else(|| self.counts.iter().position(Option::is_none));
        // If there is no room, it replaces the range with the fewest discards.
        let place = match at {
            Some(at) => &mut self.counts[at],
            None => self
                .counts
                .iter_mut()
                .min_by_key(|count| count.as_ref().map_or(0, |c| c.discards))
                .expect("there are some"),
        };
        let fresh = DiscardCount { span, descriptor, begun: now, discards: 0 };
        let same = place.filter(|c| c.descriptor == descriptor && c.span.overlaps(span));
        let mut count = same.unwrap_or(fresh);
        count.span = count.span.hull(span);
        if now.saturating_duration_since(count.begun) > WINDOW {
            count = DiscardCount { span, ..fresh };
        }
        count.discards += 1;
        *place = Some(count);
        count.discards >= MANY
    }

    /// Removes and returns a busy range of a descriptor, which stays unwatched until
    /// [`due`](BusyRanges::due) returns it. Returns `None` if there is no busy range, or if too
    /// many ranges are unwatched already.
    pub(super) fn give_up(&mut self, descriptor: usize, now: Instant) -> Option<Span> {
        if self.closed || self.given_up.len() == MOST_GIVEN_UP {
            return None;
        }
        let busy = |count: &Option<DiscardCount>| {
            count.is_some_and(|c| {
                let recent = now.saturating_duration_since(c.begun) <= WINDOW;
                c.descriptor == descriptor && c.discards >= MANY && recent
            })
        };
        let at = self.counts.iter().position(busy)?;
        let span = self.counts[at].take()?.span;
        // The kernel joins two unwatched ranges that touch, so they are watched again as one.
        let mut whole = span;
        self.given_up.retain(|&(other, by, _)| {
            let touches = by == descriptor && other.start() <= whole.end() && whole.start() <= other.end();
            if touches {
                whole = whole.hull(other);
            }
            !touches
        });
        self.given_up.push((whole, descriptor, now + PAUSE));
        Some(span)
    }

    /// Forgets memory that is no longer mapped.
    pub(super) fn unmapped(&mut self, span: Span) {
        self.given_up.retain(|(given_up, ..)| !given_up.overlaps(span));
        for count in &mut self.counts {
            count.take_if(|count| count.span.overlaps(span));
        }
    }

    /// Ends giving up ranges and watching them again.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.given_up.clear();
    }

    /// Removes and returns a range whose pause is over, and its descriptor.
    pub(super) fn due(&mut self, now: Instant) -> Option<(Span, usize)> {
        let at = self.given_up.iter().position(|&(_, _, then)| then <= now)?;
        let (span, descriptor, _) = self.given_up.swap_remove(at);
        Some((span, descriptor))
    }

    /// Returns the descriptor that watched a part of `span` before that part was given up.
    pub(super) fn descriptor_of(&self, span: Span) -> Option<usize> {
        self.given_up
            .iter()
            .find(|(given_up, ..)| given_up.overlaps(span))
            .map(|&(_, descriptor, _)| descriptor)
    }

    /// Returns the time until the next range has to be watched again, or `None` if there is none.
    pub(super) fn next_due(&self, now: Instant) -> Option<Duration> {
        self.given_up.iter().map(|&(_, _, then)| then.saturating_duration_since(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, length: usize) -> Span {
        Span::new(start, length).unwrap()
    }

    #[test]
    fn only_a_range_with_many_discards_in_one_window_is_busy() {
        let (mut busy, now) = (BusyRanges::new(), Instant::now());
        let page = span(0x1000, 0x1000);
        // Slow discards, however many.
        for n in 0..5 * MANY {
            assert!(!busy.discard(page, 1, now + n * WINDOW / (MANY / 2)));
        }
        assert_eq!(busy.give_up(1, now), None);
        // One discard of each of many pages: none of them is busy.
        for n in 0..5 * MANY as usize {
            assert!(!busy.discard(span(0x10_0000 + n * 0x1000, 0x1000), 1, now));
        }
        let later = now + 100 * WINDOW;
        let all = (0..MANY).map(|_| busy.discard(page, 2, later)).collect::<Vec<_>>();
        assert_eq!(all.iter().position(|busy| *busy), Some(MANY as usize - 1));
        assert_eq!(
            (busy.give_up(1, later), busy.give_up(2, later), busy.give_up(2, later)),
            (None, Some(page), None)
        );
        assert_eq!(busy.next_due(later), Some(PAUSE));
        assert_eq!(
            (busy.due(later), busy.due(later + PAUSE), busy.due(later + PAUSE)),
            (None, Some((page, 2)), None)
        );
        assert_eq!(busy.next_due(later), None);
    }

    #[test]
    fn unmapped_or_old_ranges_are_not_given_up_and_touching_ranges_are_joined() {
        let (mut busy, now) = (BusyRanges::new(), Instant::now());
        let discard = |busy: &mut BusyRanges, start: usize| {
            for _ in 0..MANY {
                busy.discard(span(start, 0x1000), 0, now);
            }
        };
        discard(&mut busy, 0x1000);
        assert_eq!(busy.give_up(0, now + 2 * WINDOW), None);
        busy.unmapped(span(0x1800, 1));
        assert_eq!(busy.give_up(0, now), None);
        for start in [0x1000, 0x3000, 0x2000] {
            discard(&mut busy, start);
            assert_eq!(busy.give_up(0, now), Some(span(start, 0x1000)));
        }
        assert_eq!((busy.due(now + PAUSE), busy.due(now + PAUSE)), (Some((span(0x1000, 0x3000), 0)), None));
        discard(&mut busy, 0x1000);
        assert!(busy.give_up(0, now).is_some());
        busy.unmapped(span(0x1000, 1));
        assert_eq!(busy.due(now + PAUSE), None);
        discard(&mut busy, 0x1000);
        busy.close();
        assert_eq!((busy.give_up(0, now), busy.next_due(now)), (None, None));
    }

    #[test]
    fn a_busy_range_is_found_among_many_others() {
        let (mut busy, now) = (BusyRanges::new(), Instant::now());
        let page = span(0x1000, 0x1000);
        for n in 0..4 * MANY as usize {
            busy.discard(page, 0, now);
            busy.discard(span(0x10_0000 + n * 0x1000, 0x1000), 0, now);
        }
        assert_eq!(busy.give_up(0, now), Some(page));
    }

    #[test]
    fn the_number_of_ranges_given_up_is_bounded() {
        let (mut busy, now) = (BusyRanges::new(), Instant::now());
        for n in 0..=MOST_GIVEN_UP {
            for _ in 0..MANY {
                busy.discard(span(0x2000 * (n + 1), 0x1000), 0, now);
            }
            assert_eq!(busy.give_up(0, now).is_some(), n < MOST_GIVEN_UP);
        }
        assert_eq!(busy.given_up.capacity(), MOST_GIVEN_UP);
    }
}
