//! The tasks that wait for blocks of a producer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use hostbuf_os::poison::IgnorePoison;

use super::take_error::TakeError;

/// The tasks that wait for blocks of a producer, in the order in which they came. While there are
/// any, a thread waits for blocks on their behalf, so they need no particular runtime. Threads in
/// `take` and `try_take` are not in the queue: they compete for each block with its first task.
#[derive(Debug, Default)]
pub(super) struct TakerQueue {
    state: Mutex<TakerList>,
}

#[derive(Debug, Default)]
struct TakerList {
    takers: VecDeque<Arc<Taker>>,
    has_thread: bool,
    is_closed: bool,
}

/// A task that waits for a block.
#[derive(Debug)]
pub(super) struct Taker {
    state: Mutex<TakerState>,
}

#[derive(Debug)]
enum TakerState {
    Waiting(Waker),
    /// The number of its block, or the reason why there is none.
    Finished(Result<u32, TakeError>),
    /// The task has got the result, or does not want it any more.
    Over,
}

impl Taker {
    /// Returns the number of the block, once there is one.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Result<u32, TakeError>> {
        let mut state = self.state.lock().ignore_poison();
        match std::mem::replace(&mut *state, TakerState::Over) {
            TakerState::Finished(result) => Poll::Ready(result),
            TakerState::Waiting(_) | TakerState::Over => {
                *state = TakerState::Waiting(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Notes that the task does not want a block any more, and returns the one that it has got.
    pub(super) fn cancel(&self) -> Option<u32> {
        let mut state = self.state.lock().ignore_poison();
        match std::mem::replace(&mut *state, TakerState::Over) {
            TakerState::Finished(result) => result.ok(),
            TakerState::Waiting(_) | TakerState::Over => None,
        }
    }

    /// Gives the task its result, and wakes it. Returns false if the task does not wait any more.
    pub(super) fn finish(&self, result: Result<u32, TakeError>) -> bool {
        let mut state = self.state.lock().ignore_poison();
        match std::mem::replace(&mut *state, TakerState::Over) {
            TakerState::Waiting(waker) => {
                *state = TakerState::Finished(result);
                drop(state);
                waker.wake();
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.state.lock().ignore_poison(), TakerState::Waiting(_))
    }
}

impl TakerQueue {
    /// Adds a task. `start` starts the thread that serves the tasks until
    /// [`next`](TakerQueue::next) returns none; it is called if there is no such thread.
    ///
    /// # Errors
    /// Those of `start`, and [`TakeError::Closed`].
    pub(super) fn add(
        &self,
        waker: &Waker,
        start: impl FnOnce() -> Result<(), TakeError>,
    ) -> Result<Arc<Taker>, TakeError> {
        let taker = Arc::new(Taker { state: Mutex::new(TakerState::Waiting(waker.clone())) });
        let mut state = self.state.lock().ignore_poison();
        if state.is_closed {
            return Err(TakeError::Closed);
        }
        if !state.has_thread {
            start()?;
            state.has_thread = true;
        }
        state.takers.push_back(taker.clone());
        Ok(taker)
    }

    /// Ends the waits of all tasks with [`TakeError::Closed`]. No task is added afterwards. The
    /// thread ends when it calls [`next`](TakerQueue::next).
    pub(super) fn close(&self) {
        let mut state = self.state.lock().ignore_poison();
        state.is_closed = true;
        let takers = std::mem::take(&mut state.takers);
        // A waker may call functions of the program.
        drop(state);
        for taker in takers {
            taker.finish(Err(TakeError::Closed));
        }
    }

    /// Returns whether a task waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.state.lock().ignore_poison().takers.iter().any(|taker| taker.is_waiting())
    }

    /// Returns the first task that waits. If there is none, the thread ends.
    pub(super) fn next(&self) -> Option<Arc<Taker>> {
        let mut state = self.state.lock().ignore_poison();
        while state.takers.front().is_some_and(|taker| !taker.is_waiting()) {
            state.takers.pop_front();
        }
        let first = state.takers.front().cloned();
        state.has_thread = first.is_some();
        first
    }
}
