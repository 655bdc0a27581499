//! The outcome of a frame.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::Token;

use crate::error::MirrorError;

/// The outcome of a frame, which the thread of the sender sets and the caller waits for.
#[derive(Debug, Default)]
pub(super) struct FrameOutcome {
    state: Mutex<OutcomeState>,
    changed: Condvar,
    /// The number of bytes of the content that were given to the present connection.
    sent: AtomicU64,
}

#[derive(Debug, Default)]
enum OutcomeState {
    #[default]
    Pending,
    Settled(Result<Token, MirrorError>),
    /// The caller has the outcome, or does not want it.
    Taken,
}

impl FrameOutcome {
    /// Sets the outcome, unless there is one.
    pub(super) fn settle(&self, outcome: Result<Token, MirrorError>) {
        let mut state = self.state.lock().ignore_poison();
        if matches!(*state, OutcomeState::Pending) {
            *state = OutcomeState::Settled(outcome);
            self.changed.notify_all();
        }
    }

    /// Returns whether there is an outcome.
    pub(super) fn is_settled(&self) -> bool {
        !matches!(*self.state.lock().ignore_poison(), OutcomeState::Pending)
    }

    /// Waits for the outcome and takes it. Returns `None` at `until`.
    pub(super) fn take(&self, until: Instant) -> Option<Result<Token, MirrorError>> {
        let state = self.state.lock().ignore_poison();
        let left = until.saturating_duration_since(Instant::now());
        let is_pending = |state: &mut OutcomeState| matches!(state, OutcomeState::Pending);
        let (mut state, _) = self.changed.wait_timeout_while(state, left, is_pending).ignore_poison();
        match std::mem::replace(&mut *state, OutcomeState::Taken) {
            OutcomeState::Settled(outcome) => Some(outcome),
            OutcomeState::Pending | OutcomeState::Taken => None,
        }
    }

    /// Returns the number of bytes that were given to the present connection.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Sets the number of bytes that were given to the present connection.
    pub(super) fn set_sent(&self, bytes: u64) {
        self.sent.store(bytes, Ordering::Relaxed);
    }
}
