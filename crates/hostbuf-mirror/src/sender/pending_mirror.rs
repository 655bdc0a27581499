//! A frame that is on its way.

use std::sync::Arc;
use std::time::Instant;

use hostbuf_pool::Token;

use super::frame_outcome::FrameOutcome;
use super::queue::FrameQueue;
use crate::error::MirrorError;

/// A frame that is on its way to the other host. Dropping this does not cancel the frame; its
/// outcome is lost.
#[derive(Debug)]
#[must_use = "the frame is published when `wait` returns"]
pub struct PendingMirror {
    token: Token,
    deadline: Instant,
    outcome: Arc<FrameOutcome>,
    queue: Arc<FrameQueue>,
}

impl PendingMirror {
    pub(super) fn new(
        token: Token,
        deadline: Instant,
        outcome: Arc<FrameOutcome>,
        queue: Arc<FrameQueue>,
    ) -> PendingMirror {
        PendingMirror { token, deadline, outcome, queue }
    }

    /// Returns the token of the frame on this host.
    #[must_use]
    pub fn frame(&self) -> Token {
        self.token
    }

    /// Returns whether [`wait`](PendingMirror::wait) returns without waiting.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.outcome.is_settled()
    }

    /// Waits until the receiver has published the frame, at most until the deadline of the frame,
    /// and returns the token of the copy.
    ///
    /// # Errors
    /// [`MirrorError::Refused`]; [`MirrorError::Deadline`]; [`MirrorError::Closed`];
    /// [`MirrorError::TooLong`].
    pub fn wait(self) -> Result<Token, MirrorError> {
        self.outcome
            .take(self.deadline)
            .unwrap_or_else(|| Err(self.queue.state().deadline_error(self.token, self.outcome.sent())))
    }
}
