//! The copies that a simulated device was asked for and has not begun.

use std::collections::VecDeque;

/// The order in which a simulated device does its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyOrder {
    /// The order of the requests.
    Requested,
    /// A pseudo-random order, which this seed repeats. The copies of one event stay in the order of
    /// their requests, as those of one stream do.
    Random(u64),
}

/// The largest number of copies among which a device chooses.
const CHOICES: u64 = 8;

/// A copy that was requested.
pub(super) trait PendingCopy {
    /// Returns the number of the request.
    fn number(&self) -> u64;

    /// Returns whether `self` and `other` have the same event.
    fn shares_event(&self, other: &Self) -> bool;
}

/// The copies that a simulated device was asked for and has not begun.
pub(super) struct PendingCopies<C> {
    copies: VecDeque<C>,
    order: CopyOrder,
    /// The number of copies of which the next one is chosen.
    needed: usize,
}

impl<C: PendingCopy> PendingCopies<C> {
    pub(super) fn new(order: CopyOrder) -> PendingCopies<C> {
        let mut pending = PendingCopies { copies: VecDeque::new(), order, needed: 1 };
        pending.draw_needed();
        pending
    }

    /// Adds a copy.
    pub(super) fn push(&mut self, copy: C) {
        self.copies.push_back(copy);
    }

    /// Takes the copy that the device does now, if there are as many as it chooses from.
    pub(super) fn next(&mut self) -> Option<C> {
        if self.copies.len() < self.needed { None } else { self.take() }
    }

    /// Takes the copy that the device does now, although it may have no other one to choose.
    pub(super) fn take(&mut self) -> Option<C> {
        let last = self.copies.len().checked_sub(1)?;
        let drawn = self.below(last as u64 + 1) as usize;
        self.draw_needed();
        let chosen = &self.copies[drawn];
        let first = self.copies.iter().position(|copy| copy.shares_event(chosen));
        self.copies.remove(first.unwrap_or(drawn))
    }

    /// Returns whether a copy is pending that was requested before `number`.
    pub(super) fn have_before(&self, number: u64) -> bool {
        self.copies.iter().any(|copy| copy.number() < number)
    }

    fn draw_needed(&mut self) {
        self.needed = 1 + self.below(CHOICES) as usize;
    }

    /// Returns a number below `end`, or 0 in the order of the requests.
    fn below(&mut self, end: u64) -> u64 {
        match &mut self.order {
            CopyOrder::Requested => 0,
            CopyOrder::Random(state) => {
                // A step of xorshift64*.
                *state ^= *state >> 12;
                *state ^= *state << 25;
                *state ^= *state >> 27;
                (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A copy with the number of its request, and that of its event.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct NumberedCopy(u64, u8);

    impl PendingCopy for NumberedCopy {
        fn number(&self) -> u64 {
            self.0
        }

        fn shares_event(&self, other: &NumberedCopy) -> bool {
            self.1 == other.1
        }
    }

    /// Requests copies with these events, and returns the numbers of the copies in their order.
    fn done(events: &[u8], order: CopyOrder) -> Vec<u64> {
        let mut pending = PendingCopies::new(order);
        let mut done = Vec::new();
        for (number, &event) in (0..).zip(events) {
            pending.push(NumberedCopy(number, event));
            done.extend(pending.next().map(|copy| copy.0));
        }
        done.extend(std::iter::from_fn(|| pending.take()).map(|copy| copy.0));
        done
    }

    #[test]
    fn a_device_in_the_order_of_the_requests_does_each_copy_at_once() {
        let mut pending = PendingCopies::new(CopyOrder::Requested);
        for number in 0..10 {
            pending.push(NumberedCopy(number, 0));
            assert_eq!(pending.next(), Some(NumberedCopy(number, 0)));
        }
        assert_eq!(pending.take(), None);
    }

    #[test]
    fn a_device_that_reorders_repeats_its_order() {
        let events: Vec<u8> = (0..100).collect();
        let first = done(&events, CopyOrder::Random(1));
        assert!(!first.is_sorted());
        assert_eq!(done(&events, CopyOrder::Random(1)), first);
        assert_ne!(done(&events, CopyOrder::Random(2)), first);
    }

    proptest! {
        #[test]
        fn copies_of_one_event_stay_in_the_order_of_their_requests(
            events in proptest::collection::vec(0_u8..5, 1..100),
            seed in 1_u64..,
        ) {
            let done = done(&events, CopyOrder::Random(seed));
            for event in 0..5 {
                let of_event = done.iter().filter(|&&number| events[number as usize] == event);
                prop_assert!(of_event.is_sorted());
            }
            let mut all = done;
            all.sort_unstable();
            prop_assert_eq!(all, (0..events.len() as u64).collect::<Vec<_>>());
        }
    }
}
