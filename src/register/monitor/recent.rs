//! Pages that have been given back not long ago.
//!
//! The kernel tells before it takes them, and goes on when that has been read: for a while the old pages are still there, and
//! nothing tells when they have gone.
//!
//! ```text
//!   the thread that gives back:   told -- woken --|-- waits for the address space's lock --|-- takes the pages --|
//!   the monitor:                        read
//!                                         |---------------- WHILE --------------|- barrier -|  from here on it is over
//! ```
//!
//! How long it takes from waking to the lock only the scheduler knows: that is what the time is for. Taking the pages may
//! be much longer, and is waited for by the barrier, which wants the same lock for itself alone.

use std::time::{Duration, Instant};

use crate::span::Span;

/// How long a thread that the kernel has woken may take until it has the lock: many turns of the scheduler, and one period of
/// a container's share of the cores.
const WHILE: Duration = Duration::from_millis(100);
const MOST: usize = 256;

pub(super) struct Recent {
    given_back: [Option<(Span, Instant)>; MOST],
}

/// What is known about the pages of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// They are what they will be.
    Settled,
    /// They may still be the old ones.
    Going,
    /// The time is over: they are settled after one barrier.
    Due,
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { given_back: [None; MOST] }
    }

    /// Without room the range is joined with another one: too much is noted then, never too little.
    pub(super) fn add(&mut self, span: Span, now: Instant) {
        let overlapping = self.given_back.iter().flatten().position(|(s, _)| s.overlaps(span));
        if overlapping.is_none()
            && let Some(free) = self.given_back.iter_mut().find(|entry| entry.is_none())
        {
            *free = Some((span, now));
            return;
        }
        let nearest = self.given_back.iter_mut().flatten().min_by_key(|(s, _)| s.hull(span).len() - s.len());
        if let Some(entry) = nearest {
            *entry = (entry.0.hull(span), now);
        }
    }

    /// The range is not mapped any more.
    pub(super) fn unmapped(&mut self, span: Span) {
        self.drop_those(|there, _| span.contains(there));
    }

    pub(super) fn pages(&self, span: Span, now: Instant) -> Pages {
        let mut pages = Pages::Settled;
        for (_, read) in self.given_back.iter().flatten().filter(|(s, _)| s.overlaps(span)) {
            if now.saturating_duration_since(*read) < WHILE {
                return Pages::Going;
            }
            pages = Pages::Due;
        }
        pages
    }

    /// There was a barrier that began then.
    pub(super) fn barrier(&mut self, begun: Instant) {
        self.drop_those(|_, read| begun.saturating_duration_since(read) >= WHILE);
    }

    fn drop_those(&mut self, those: impl Fn(Span, Instant) -> bool) {
        for entry in &mut self.given_back {
            if entry.is_some_and(|(span, read)| those(span, read)) {
                *entry = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_settled_after_a_while_and_a_barrier() {
        let span = |a, n| Span::new(a, n).unwrap();
        let (mut recent, now) = (Recent::new(), Instant::now());
        recent.add(span(100, 10), now);
        assert_eq!(recent.pages(span(109, 5), now), Pages::Going);
        assert_eq!(recent.pages(span(110, 5), now), Pages::Settled);
        recent.barrier(now + WHILE / 2);
        assert_eq!(recent.pages(span(100, 1), now + WHILE), Pages::Due);
        recent.barrier(now + WHILE);
        assert_eq!(recent.pages(span(100, 1), now + WHILE), Pages::Settled);
        recent.add(span(100, 10), now);
        recent.unmapped(span(101, 20));
        assert_eq!(recent.pages(span(100, 1), now), Pages::Going);
        recent.unmapped(span(99, 20));
        assert_eq!(recent.pages(span(100, 1), now), Pages::Settled);
    }

    #[test]
    fn nothing_is_lost_however_much_is_given_back() {
        let (mut recent, now) = (Recent::new(), Instant::now());
        let spans = (0..4 * MOST).map(|n| Span::new(1 + (n * 7919) % 100_000, 1 + n % 5).unwrap());
        spans.clone().for_each(|span| recent.add(span, now));
        assert!(spans.clone().all(|span| recent.pages(span, now) == Pages::Going));
    }
}
