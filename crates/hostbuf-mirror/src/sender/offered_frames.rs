//! The frames that a receiver was offered to read.

use std::collections::VecDeque;

/// The frames that a receiver was offered to read and has not answered, in the order of their
/// numbers, each with what keeps its memory.
#[derive(Debug)]
pub(super) struct OfferedFrames<M> {
    frames: VecDeque<(u64, M)>,
    /// True once the receiver has answered a frame that it had to read.
    has_worked: bool,
}

impl<M> OfferedFrames<M> {
    /// Makes an empty list.
    pub(super) fn new() -> OfferedFrames<M> {
        OfferedFrames { frames: VecDeque::new(), has_worked: false }
    }

    /// Adds frame `number`, whose number is the largest one.
    pub(super) fn push(&mut self, number: u64, memory: M) {
        self.frames.push_back((number, memory));
    }

    /// Removes the frames up to `number`, which the receiver has answered.
    pub(super) fn end(&mut self, number: u64) {
        while self.frames.front().is_some_and(|(first, _)| *first <= number) {
            self.frames.pop_front();
            self.has_worked = true;
        }
    }

    /// Removes the last frame if its number is `number`: the receiver has not heard of it.
    pub(super) fn withdraw(&mut self, number: u64) {
        if self.frames.back().is_some_and(|(last, _)| *last == number) {
            self.frames.pop_back();
        }
    }

    /// Returns whether the receiver has read nothing of what it was offered.
    pub(super) fn has_failed(&self) -> bool {
        !self.has_worked && !self.frames.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::OfferedFrames;

    #[test]
    fn a_frame_that_was_not_sent_gives_its_memory_back_and_is_no_failed_read() {
        let (mut offered, memory) = (OfferedFrames::new(), Rc::new(()));
        offered.push(7, memory.clone());
        offered.withdraw(7);
        assert_eq!((Rc::strong_count(&memory), offered.has_failed()), (1, false));
        offered.push(8, memory.clone());
        offered.push(9, memory.clone());
        offered.withdraw(8);
        assert_eq!((Rc::strong_count(&memory), offered.has_failed()), (3, true));
        offered.withdraw(9);
        offered.end(8);
        assert_eq!((Rc::strong_count(&memory), offered.has_failed()), (1, false));
    }
}
