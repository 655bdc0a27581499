//! A sender of blocks to another host.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use hostbuf_os::{process, thread};
use hostbuf_pool::{AcquireError, BlockRef, Pool, PoolError, Token};

use super::known_segments::KnownSegments;
use super::options::MirrorSenderOptions;
use super::pending_mirror::PendingMirror;
use super::queue::FrameQueue;
use super::sender_counters::SenderCounters;
use super::worker::SenderWorker;
use crate::error::MirrorError;
use crate::readiness::WakeEvent;

/// A sender of blocks to the [`MirrorReceiver`](crate::MirrorReceiver) of another host.
///
/// Its threads may share it. Frames are sent in the order in which they are begun, and acknowledged
/// in that order. After a lost connection it connects again as soon as a frame waits, and sends
/// what was not acknowledged.
///
/// Dropping it ends its thread and the frames that wait, which may be published or not.
pub struct MirrorSender {
    queue: Arc<FrameQueue>,
    window: u64,
    known: KnownSegments,
    thread: Option<thread::Thread>,
    /// The process that made the sender: a forked child has no thread of it.
    process: u32,
}

impl MirrorSender {
    /// Connects to a receiver. Of several addresses of a name, it takes the first that responds.
    ///
    /// # Errors
    /// [`MirrorError::Unreachable`]; [`MirrorError::Invalid`]; [`MirrorError::Os`].
    pub fn connect(
        address: impl ToSocketAddrs + std::fmt::Debug,
        options: MirrorSenderOptions,
    ) -> Result<MirrorSender, MirrorError> {
        options.check()?;
        let unreachable = |why: String| MirrorError::Unreachable { peer: format!("{address:?}"), why };
        let peers =
            address.to_socket_addrs().map_err(|error| unreachable(format!("{error}; check the address")))?;
        let mut failure = unreachable("the name has no address".into());
        for peer in peers {
            let session = process::random().map_err(MirrorError::os("drawing a random number"))?;
            let wake = WakeEvent::new().map_err(MirrorError::os("opening an event descriptor"))?;
            let queue = Arc::new(FrameQueue::new(session, wake, peer));
            let window = u64::from(options.window);
            match SenderWorker::connect(queue.clone(), options.clone()) {
                Ok(worker) => {
                    let thread = thread::spawn(c"hostbuf-mirror", move || worker.run())
                        .map_err(MirrorError::os("starting a thread"))?;
                    let (thread, process) = (Some(thread), std::process::id());
                    let known = KnownSegments::default();
                    return Ok(MirrorSender { queue, window, known, thread, process });
                }
                Err(error) => {
                    let mut why = error.to_string();
                    if error.is_refused() {
                        why += "; start the receiver there first";
                    }
                    failure = MirrorError::Unreachable { peer: peer.to_string(), why };
                }
            }
        }
        Err(failure)
    }

    /// Returns the address of the receiver.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.queue.state().peer
    }

    /// Returns the number of connections that were made. It is greater than 1 after a connection
    /// was lost.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.queue.state().counters.connections
    }

    /// Returns counts of connections and frames.
    #[must_use]
    pub fn counters(&self) -> SenderCounters {
        self.queue.state().counters
    }

    /// Returns the last reason why the bytes of frames went by TCP although the sender has an RDMA
    /// device. Returns `None` if there was no such reason, and if the sender has no device.
    #[must_use]
    pub fn tcp_reason(&self) -> Option<String> {
        self.queue.state().tcp_reason.clone()
    }

    /// Sends the block of a token, waits until the receiver has published its copy, and returns the
    /// token of the copy, which is valid in the pool of the receiver's host.
    ///
    /// # Errors
    /// The errors of [`begin`](MirrorSender::begin) and [`PendingMirror::wait`].
    pub fn send(&self, pool: &Pool, token: &Token, deadline: Instant) -> Result<Token, MirrorError> {
        self.begin(pool, token, deadline)?.wait()
    }

    /// Begins to send the block of a token, which it holds until the receiver has published the
    /// copy, at most until `deadline`. Waits while as many frames as the window allows are not
    /// acknowledged.
    ///
    /// # Errors
    /// [`MirrorError::Acquire`], also in a forked child; [`MirrorError::Deadline`];
    /// [`MirrorError::TooLong`]; [`MirrorError::Os`].
    pub fn begin(&self, pool: &Pool, token: &Token, deadline: Instant) -> Result<PendingMirror, MirrorError> {
        if self.process != std::process::id() {
            // The thread that sends is the parent's.
            return Err(AcquireError::Pool(PoolError::Forked).into());
        }
        let block = self.acquire(pool, token, deadline)?;
        let outcome = self.queue.add(*token, block, deadline, self.window)?;
        Ok(PendingMirror::new(*token, deadline, outcome, self.queue.clone()))
    }

    /// Acquires the block of a token. It waits at most until `deadline`.
    fn acquire(&self, pool: &Pool, token: &Token, deadline: Instant) -> Result<BlockRef, MirrorError> {
        if self.known.contains(token) {
            return Ok(pool.acquire(token)?);
        }
        // The broker attaches a new segment. If it does not answer, the pool waits for its own
        // timeout; so a thread does that.
        let (sender, receiver) = mpsc::sync_channel(1);
        let (of_thread, wanted) = (pool.clone(), *token);
        let acquire = move || drop(sender.send(of_thread.acquire(&wanted)));
        thread::spawn(c"hostbuf-acquire", acquire).map_err(MirrorError::os("starting a thread"))?;
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(acquired) = receiver.recv_timeout(left) else {
            return Err(self.queue.state().deadline_error(*token, 0));
        };
        let block = acquired?;
        self.known.add(token);
        Ok(block)
    }
}

impl std::fmt::Debug for MirrorSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorSender").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

impl Drop for MirrorSender {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}
