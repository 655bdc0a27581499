//! The thread of a sender.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::MirrorConnection;
use super::open::{OpenFailure, Opened, open};
use super::options::MirrorSenderOptions;
use super::queue::FrameQueue;
use crate::readiness::wait;
use crate::wire::SenderHello;

/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The thread of a sender: it owns the connection.
#[derive(Debug)]
pub(super) struct SenderWorker {
    queue: Arc<FrameQueue>,
    options: MirrorSenderOptions,
    connection: Option<MirrorConnection>,
    pause: Duration,
    /// The earliest time of the next attempt to connect.
    next_attempt: Instant,
}

impl SenderWorker {
    /// Connects for the first time.
    ///
    /// # Errors
    /// [`OpenFailure`].
    pub(super) fn connect(
        queue: Arc<FrameQueue>,
        options: MirrorSenderOptions,
    ) -> Result<SenderWorker, OpenFailure> {
        let now = Instant::now();
        let mut worker =
            SenderWorker { queue, options, connection: None, pause: FIRST_PAUSE, next_attempt: now };
        worker.open()?;
        Ok(worker)
    }

    /// Serves the queue until it is closed.
    pub(super) fn run(mut self) {
        while !self.queue.state().is_closed {
            let expired = self.queue.expire();
            if let (Some(last), Some(connection)) = (expired, &self.connection)
                && last <= connection.begun()
            {
                // It may have been sent in part, or the peer may have vanished without a word.
                self.lose("a frame was not acknowledged in time".into());
            }
            let deadline = self.queue.state().first_deadline();
            if let Some(connection) = &mut self.connection {
                if let Err(why) = connection.progress(&self.queue, deadline) {
                    self.lose(why);
                }
            } else if deadline.is_some() && Instant::now() >= self.next_attempt {
                self.reopen();
            } else {
                let until = deadline.map(|deadline| deadline.min(self.next_attempt));
                if wait(None, &self.queue.wake, until).is_err() {
                    return self.queue.close();
                }
                self.queue.wake.clear();
            }
        }
    }

    fn lose(&mut self, why: String) {
        self.connection = None;
        let mut state = self.queue.state();
        tracing::debug!(peer = %state.peer, why, "the connection of a mirror is lost");
        state.reset_sent();
        state.lost = Some(why);
    }

    fn reopen(&mut self) {
        if let Err(failure) = self.open() {
            self.next_attempt = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.queue.state().lost = Some(failure.to_string());
        }
    }

    fn open(&mut self) -> Result<(), OpenFailure> {
        let queue = &*self.queue;
        let (peer, hello, deadline) = {
            let state = queue.state();
            let hello = SenderHello { session: queue.session, answered: state.answered() };
            (state.peer, hello, state.first_deadline())
        };
        let limit = Instant::now() + self.options.connect_timeout;
        let until = deadline.map_or(limit, |deadline| deadline.min(limit));
        let is_closed = || queue.state().is_closed;
        let Opened { stream, hello, answers } = open(peer, hello, &queue.wake, &is_closed, until)?;
        let mut state = queue.state();
        let is_restarted = state.receiver.0 != hello.receiver;
        state.receiver = (hello.receiver, hello.most);
        state.connections += 1;
        state.lost = None;
        drop(state);
        // Callers that have their answers see the connection that has brought them.
        for answer in answers {
            queue.answer(answer)?;
        }
        tracing::debug!(%peer, is_restarted, settled = hello.settled, "a mirror is connected");
        queue.refuse_longer(hello.most);
        self.connection = Some(MirrorConnection::new(stream, hello.settled));
        self.pause = FIRST_PAUSE;
        Ok(())
    }
}
