//! The link of a client to the current broker.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_os::{FrameSocket, PrivateFd, socket};

use super::connect::OpenConnection;
use super::peer_broker::peer_broker;
use super::pool_options::PoolOptions;
use crate::error::{BrokerRefusal, PoolError};
use crate::pool_id::PoolId;
use crate::wire::{PoolMessage, RefusalKind, RefusalRecord, SegmentKey};

/// An answer of the broker: its packet and its descriptors.
pub(super) type BrokerAnswer = (Vec<u8>, Vec<PrivateFd>);

/// The link of a client to the current broker: requests and their answers.
#[derive(Debug)]
pub(super) struct BrokerLink {
    fork_guard: ForkGuard,
    options: PoolOptions,
    state: Mutex<LinkState>,
    /// Notified when there is a new broker.
    connected: Condvar,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct LinkState {
    /// `None` while there is no broker.
    socket: Option<Arc<FrameSocket>>,
    /// The file by which a later broker knows this process as a client of the last one.
    _client_file: PrivateFd,
    pool: PoolId,
    /// The pools of all brokers so far.
    known_pools: HashSet<PoolId>,
    next_request: u64,
    /// The requests without an answer.
    waiting: HashMap<u64, mpsc::Sender<BrokerAnswer>>,
}

/// Sends a message and descriptors.
///
/// # Errors
/// As `sendmsg(2)`.
pub(super) fn send(
    socket: &FrameSocket,
    message: &PoolMessage<'_>,
    descriptors: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    socket.send_packet(&message.encode(), &raw)
}

/// Returns the error for an answer that the protocol does not allow.
pub(super) fn unexpected() -> PoolError {
    PoolError::NoBroker {
        why: "the pool's broker has sent an unexpected answer: use one installation of hostbuf".into(),
    }
}

fn refused(refusal: &RefusalRecord<'_>) -> BrokerRefusal {
    let text = refusal.text.to_owned();
    match refusal.kind {
        RefusalKind::NoSpace => BrokerRefusal::NoSpace {
            requested: refusal.requested,
            available: refusal.available,
            details: text,
        },
        RefusalKind::UnknownSegment => BrokerRefusal::UnknownSegment,
        RefusalKind::NoRow => BrokerRefusal::NoRow { readers: refusal.available },
        RefusalKind::Recovering => BrokerRefusal::Recovering { details: text },
        RefusalKind::Invalid | RefusalKind::Os => BrokerRefusal::Failed(text),
    }
}

impl LinkState {
    /// Ends the connection. Requests without an answer fail.
    fn end_connection(&mut self) {
        if let Some(socket) = self.socket.take() {
            // The service thread notices it, and connects again.
            let _ = socket::shut_down(socket.as_fd());
        }
        self.waiting.clear();
    }
}

impl BrokerLink {
    /// Makes the link of a new connection.
    pub(super) fn new(open: OpenConnection, options: PoolOptions) -> BrokerLink {
        let OpenConnection { socket, pool, client_file } = open;
        let state = LinkState {
            socket: Some(Arc::new(socket)),
            _client_file: client_file,
            pool,
            known_pools: HashSet::from([pool]),
            next_request: 1,
            waiting: HashMap::new(),
        };
        BrokerLink {
            fork_guard: ForkGuard::current(),
            options,
            state: Mutex::new(state),
            connected: Condvar::new(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns whether this process has the link: a forked child has not.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.fork_guard.is_current()
    }

    /// Fails in a forked child.
    ///
    /// # Errors
    /// [`PoolError::Forked`].
    pub(super) fn check_process(&self) -> Result<(), PoolError> {
        if self.is_of_this_process() { Ok(()) } else { Err(PoolError::Forked) }
    }

    /// Returns the time for which a request waits.
    pub(super) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Returns the pool of the current or the last broker.
    pub(super) fn pool(&self) -> PoolId {
        self.state.lock().ignore_poison().pool
    }

    /// Returns whether a broker of this client had this pool.
    pub(super) fn has_known(&self, pool: PoolId) -> bool {
        self.state.lock().ignore_poison().known_pools.contains(&pool)
    }

    /// Returns the socket, if there is a broker.
    pub(super) fn socket(&self) -> Option<Arc<FrameSocket>> {
        self.state.lock().ignore_poison().socket.clone()
    }

    /// Begins with a new broker.
    pub(super) fn connect(&self, socket: Arc<FrameSocket>, pool: PoolId, client_file: PrivateFd) {
        let mut state = self.state.lock().ignore_poison();
        state.socket = Some(socket);
        state._client_file = client_file;
        state.pool = pool;
        state.known_pools.insert(pool);
        drop(state);
        self.connected.notify_all();
    }

    /// Notes the end of the broker. Requests without an answer fail.
    pub(super) fn disconnect(&self) {
        self.state.lock().ignore_poison().end_connection();
    }

    /// Ends a connection that cannot be used any more, unless there is another one already.
    fn end_connection(&self, socket: &Arc<FrameSocket>) {
        let mut state = self.state.lock().ignore_poison();
        if state.socket.as_ref().is_some_and(|current| Arc::ptr_eq(current, socket)) {
            state.end_connection();
        }
    }

    /// Ends the link: later requests do not wait for a broker.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.connected.notify_all();
    }

    /// Passes an answer on, which is the last one of its request if `is_last`. Returns false if the
    /// requester has stopped waiting.
    pub(super) fn answer(&self, request: u64, is_last: bool, answer: BrokerAnswer) -> bool {
        let mut state = self.state.lock().ignore_poison();
        let requester =
            if is_last { state.waiting.remove(&request) } else { state.waiting.get(&request).cloned() };
        requester.is_some_and(|requester| requester.send(answer).is_ok())
    }

    /// Calls `attempt` while there is a broker, again if the broker ends meanwhile.
    ///
    /// # Errors
    /// Those of `attempt`; [`PoolError::BrokerGone`] if there is no broker within the time limit;
    /// [`PoolError::Forked`].
    pub(super) fn with_broker<T>(
        &self,
        mut attempt: impl FnMut(Instant) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        self.check_process()?;
        let deadline = Instant::now() + self.options.timeout;
        loop {
            self.wait_connected(deadline)?;
            match attempt(deadline) {
                Err(PoolError::BrokerGone) => {}
                result => return result,
            }
        }
    }

    fn wait_connected(&self, deadline: Instant) -> Result<(), PoolError> {
        let mut state = self.state.lock().ignore_poison();
        while state.socket.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_closed.load(Ordering::Relaxed) {
                return Err(PoolError::BrokerGone);
            }
            (state, _) = self.connected.wait_timeout(state, left).ignore_poison();
        }
        Ok(())
    }

    /// Sends a request, and returns its number and the channel of its answers.
    fn begin<'m>(
        &self,
        message: impl Fn(u64) -> PoolMessage<'m>,
    ) -> Result<(u64, mpsc::Receiver<BrokerAnswer>), PoolError> {
        let mut state = self.state.lock().ignore_poison();
        let socket = state.socket.clone().ok_or(PoolError::BrokerGone)?;
        let request = state.next_request;
        state.next_request += 1;
        let (sender, receiver) = mpsc::channel();
        state.waiting.insert(request, sender);
        if send(&socket, &message(request), &[]).is_err() {
            // The service thread has not noticed it yet.
            state.end_connection();
            return Err(PoolError::BrokerGone);
        }
        Ok((request, receiver))
    }

    /// Sends a request to the current broker and waits for its answer.
    ///
    /// # Errors
    /// [`PoolError`]: [`PoolError::Refused`] for a refusal, [`PoolError::BrokerGone`] if the broker
    /// ends.
    pub(super) fn request<'m>(
        &self,
        doing: &str,
        deadline: Instant,
        message: impl Fn(u64) -> PoolMessage<'m>,
    ) -> Result<BrokerAnswer, PoolError> {
        let (request, answers) = self.begin(message)?;
        let answer = self.next_answer(doing, request, &answers, deadline)?;
        match PoolMessage::parse(&answer.0) {
            Ok(PoolMessage::Refused { refusal, .. }) => Err(PoolError::Refused(refused(&refusal))),
            _ => Ok(answer),
        }
    }

    /// Requests the description of the broker's state, which comes in parts.
    ///
    /// # Errors
    /// As [`request`](BrokerLink::request).
    pub(super) fn request_status(&self, deadline: Instant) -> Result<String, PoolError> {
        let (request, answers) = self.begin(|request| PoolMessage::Status { request })?;
        let mut text = String::new();
        loop {
            let answer = self.next_answer("listing the pool", request, &answers, deadline)?;
            match PoolMessage::parse(&answer.0) {
                Ok(PoolMessage::StatusPart { text: "", .. }) => return Ok(text),
                Ok(PoolMessage::StatusPart { text: part, .. }) => text.push_str(part),
                _ => return Err(unexpected()),
            }
        }
    }

    /// Returns the error of a request that the broker has not answered in time.
    pub(super) fn timed_out(&self, doing: &str) -> PoolError {
        let broker = self.socket().and_then(|socket| peer_broker(&socket, &self.options));
        PoolError::Timeout { doing: doing.to_owned(), broker, limit: self.options.timeout }
    }

    fn next_answer(
        &self,
        doing: &str,
        request: u64,
        answers: &mpsc::Receiver<BrokerAnswer>,
        deadline: Instant,
    ) -> Result<BrokerAnswer, PoolError> {
        match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(answer) => Ok(answer),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(PoolError::BrokerGone),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.state.lock().ignore_poison().waiting.remove(&request);
                Err(self.timed_out(doing))
            }
        }
    }

    /// Tells the broker that this client publishes nothing in a segment any more, and has unmapped
    /// it.
    pub(super) fn give_up(&self, key: SegmentKey) {
        self.notify(&PoolMessage::Close { key });
        self.notify(&PoolMessage::Detached { key, row: None });
    }

    /// Sends a message without an answer. Without a broker it is lost: a later broker learns what
    /// this client still has.
    pub(super) fn notify(&self, message: &PoolMessage<'_>) {
        self.notify_with(message, &[]);
    }

    /// Sends a message with descriptors and without an answer.
    pub(super) fn notify_with(&self, message: &PoolMessage<'_>, descriptors: &[BorrowedFd<'_>]) {
        if !self.is_of_this_process() {
            return;
        }
        let Some(socket) = self.socket() else { return };
        if send(&socket, message, descriptors).is_err() {
            // A broker that does not read, or has ended. The message is lost with the connection:
            // the next one begins with what this client has.
            self.end_connection(&socket);
        }
    }
}
