//! The thread of a sender.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::MirrorConnection;
use super::frame_offers::{FrameOffers, OfferedMemory};
use super::open::{OpenFailure, Opened, open};
use super::options::MirrorSenderOptions;
use super::queue::FrameQueue;
use crate::readiness::wait;
use crate::wire::SenderHello;

/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The number of connections in a row without a read, after which the next one is without RDMA.
const MAX_FAILED_READS: u32 = 2;

/// The thread of a sender: it owns the connection.
#[derive(Debug)]
pub(super) struct SenderWorker {
    queue: Arc<FrameQueue>,
    options: MirrorSenderOptions,
    connection: Option<MirrorConnection>,
    memory: OfferedMemory,
    /// The number of connections in a row by which the receiver has read nothing by RDMA.
    failed_reads: u32,
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
        let memory = OfferedMemory::new(&options);
        let mut worker = SenderWorker {
            queue,
            options,
            connection: None,
            memory,
            failed_reads: 0,
            pause: FIRST_PAUSE,
            next_attempt: now,
        };
        worker.open()?;
        Ok(worker)
    }

    /// Serves the queue until it is closed.
    pub(super) fn run(mut self) {
        while !self.queue.state().is_closed {
            let (expired, mut is_late) = (self.queue.expire(), false);
            if let (Some(last), Some(connection)) = (expired, &mut self.connection) {
                connection.drop_expired(&self.queue);
                is_late = last <= connection.begun();
            }
            if is_late {
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
        // Its offers end with it, before the frames are sent again.
        let has_failed = self.connection.take().is_some_and(|lost| lost.has_failed_to_read());
        self.failed_reads = if has_failed { self.failed_reads + 1 } else { 0 };
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

    /// Makes an end of a connection for reads by RDMA, unless they have failed lately: the network
    /// of the devices may be another one than that of the stream.
    fn prepare_offers(&mut self) -> Option<FrameOffers> {
        let prepared = if self.failed_reads < MAX_FAILED_READS {
            self.memory.prepare()
        } else {
            self.failed_reads = 0;
            Err(format!("the receiver could read nothing by RDMA on {MAX_FAILED_READS} connections"))
        };
        prepared.unwrap_or_else(|why| {
            self.queue.use_tcp(why);
            None
        })
    }

    fn open(&mut self) -> Result<(), OpenFailure> {
        let offers = self.prepare_offers();
        let queue = &*self.queue;
        let reads = offers.as_ref().map_or([0; 28], FrameOffers::endpoint);
        let (peer, hello) = {
            let state = queue.state();
            let hello = SenderHello { session: queue.session, answered: state.answered(), reads };
            (state.peer, hello)
        };
        let until = Instant::now() + self.options.connect_timeout;
        let is_closed = || queue.state().is_closed;
        let expire = || {
            queue.expire();
            queue.state().first_deadline()
        };
        let Opened { stream, hello, answers } = open(peer, hello, &queue.wake, &is_closed, &expire, until)?;
        let mut state = queue.state();
        let is_restarted = state.receiver.0 != hello.receiver;
        state.receiver = (hello.receiver, hello.most);
        state.counters.connections += 1;
        state.lost = None;
        drop(state);
        // Callers that have their answers see the connection that has brought them.
        for answer in answers {
            queue.answer(answer)?;
        }
        tracing::debug!(%peer, is_restarted, settled = hello.settled, "a mirror is connected");
        queue.refuse_longer(hello.most);
        let offers = offers.filter(|offers| {
            let connected = offers.connect(&hello.reads);
            connected.map_err(|why| queue.use_tcp(why)).is_ok()
        });
        self.connection = Some(MirrorConnection::new(stream, hello.settled, offers));
        self.pause = FIRST_PAUSE;
        Ok(())
    }
}
