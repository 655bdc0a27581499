//! Connections, made on demand by a connect message, its reply, and a queue pair on both sides.
//!
//! ```text
//!   requester: new queue pair ── Request(its info) ──>  acceptor: new queue pair,
//!              connected to the   <── Reply(its info) ──            connected to the
//!              acceptor's                                           requester's
//! ```
//!
//! Datagrams may be lost. The requester repeats the message with the same attempt number, and the
//! acceptor repeats the same reply. Each side requests the connections on which it sends. Two
//! processes that send to each other thus have two queue pairs each, and need not agree on who
//! connects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use crate::connect::connect_message::{ConnectBody, ConnectMessage};
use crate::connect::device_resources::DeviceResources;
use crate::connect::endpoint_info::GroupId;
use crate::options::FabricOptions;
use crate::peer::PeerId;
use crate::sync::{lock, time_left};
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::datagram::DatagramAddress;
use crate::verbs::queue_pair::{LocalInfo, QueuePair, QueuePairInfo, RemoteInfo};
use crate::verbs::shared_receive_queue::ReceiveSlot;
use hostbuf::error::{Error, Failure, Result};

/// The time until a request is repeated for the first time. It doubles with each repetition, up to
/// `MAX_RETRY_INTERVAL`.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The connections of an endpoint to its peers. See the [module](self).
pub(crate) struct Connections {
    group: GroupId,
    own: u32,
    peers: Vec<DatagramAddress>,
    // The queue pairs are dropped before the objects that they use.
    outgoing: Vec<Outgoing>,
    accepted: Mutex<HashMap<u32, Accepted>>,
    /// The replies to this endpoint's requests, by the number of the attempt.
    replies: Mutex<HashMap<u64, Option<ConnectBody>>>,
    replied: Condvar,
    next_attempt: AtomicU64,
    resources: DeviceResources,
    options: FabricOptions,
}

/// The connection to a peer that this endpoint requests.
#[derive(Default)]
struct Outgoing {
    /// The state. Its lock is held only briefly, never while a connection is made.
    state: Mutex<(OutgoingState, FailedAttempts)>,
    changed: Condvar,
}

#[derive(Default)]
enum OutgoingState {
    #[default]
    Disconnected,
    /// A thread is making the connection.
    Connecting,
    Connected(Arc<QueuePair>),
}

/// The result of making a connection, for the threads that wait for it.
enum ConnectOutcome {
    Connected(Arc<QueuePair>),
    Failed(Failure),
    /// The deadline of the thread that made it has passed.
    OutOfTime,
}

/// The number of failed attempts to connect to a peer, and the last failure.
#[derive(Clone, Copy, Default)]
struct FailedAttempts {
    count: u64,
    last: Option<Failure>,
}

/// A connection that a peer has requested.
struct Accepted {
    attempt: u64,
    info: LocalInfo,
    _queue_pair: QueuePair,
}

impl Connections {
    /// Makes the connections of the endpoint with index `own` in `peers`. None is made yet.
    pub(crate) fn new(
        resources: DeviceResources,
        group: GroupId,
        own: PeerId,
        peers: Vec<DatagramAddress>,
        options: FabricOptions,
    ) -> Connections {
        Connections {
            group,
            own: own.0 as u32,
            outgoing: peers.iter().map(|_| Outgoing::default()).collect(),
            peers,
            accepted: Mutex::new(HashMap::new()),
            replies: Mutex::new(HashMap::new()),
            replied: Condvar::new(),
            // A restarted process must begin with greater numbers than its predecessor used.
            next_attempt: AtomicU64::new(wall_clock()),
            resources,
            options,
        }
    }

    /// Returns the number of connections, of both directions.
    pub(crate) fn count(&self) -> usize {
        let is_connected =
            |outgoing: &&Outgoing| matches!(lock(&outgoing.state).0, OutgoingState::Connected(_));
        self.outgoing.iter().filter(is_connected).count() + lock(&self.accepted).len()
    }

    /// Returns the completion queues of connect messages and of notifications.
    pub(crate) fn incoming(&self) -> [&CompletionQueue; 2] {
        [self.resources.datagrams.incoming(), self.resources.receive_queue.completions()]
    }

    /// Returns the connection to `peer`, and makes it if there is none. Waits until `deadline` at
    /// most, and no longer than the option `connect_timeout`.
    ///
    /// # Errors
    /// [`Error::Peer`] if the peer does not reply in time, or refuses; [`Error::Os`].
    pub(crate) fn get(&self, peer: PeerId, deadline: Option<Instant>) -> Result<Arc<QueuePair>> {
        let outgoing = &self.outgoing[peer.0];
        let mut state = lock(&outgoing.state);
        let failed_before = state.1.count;
        loop {
            match &state.0 {
                OutgoingState::Connected(queue_pair) => return Ok(queue_pair.clone()),
                OutgoingState::Disconnected => break,
                OutgoingState::Connecting => {
                    let left = time_left(deadline).min(MAX_RETRY_INTERVAL);
                    if left.is_zero() {
                        return Err(self.failed(peer, Failure::Timeout));
                    }
                    let waited = outgoing.changed.wait_timeout(state, left);
                    state = waited.ignore_poison().0;
                    // A failure counts for all threads that waited for this attempt.
                    if state.1.count != failed_before {
                        return Err(self.failed(peer, state.1.last.unwrap_or(Failure::Timeout)));
                    }
                }
            }
        }
        state.0 = OutgoingState::Connecting;
        drop(state);
        let guard = ConnectingGuard(outgoing);
        let option_deadline = Instant::now() + self.options.connect_timeout;
        let result =
            self.request(peer, deadline.map_or(option_deadline, |deadline| deadline.min(option_deadline)));
        std::mem::forget(guard);
        outgoing.finish(match &result {
            Ok(queue_pair) => ConnectOutcome::Connected(queue_pair.clone()),
            Err(error) => ConnectOutcome::of_error(error, deadline, option_deadline),
        });
        result
    }

    /// Discards the connection to `peer` if it is still `queue_pair`. The next request makes a new
    /// one. A failed request has moved the queue pair to the error state, in which the device
    /// flushes all others.
    pub(crate) fn discard(&self, peer: PeerId, queue_pair: &Arc<QueuePair>) {
        let mut state = lock(&self.outgoing[peer.0].state);
        if matches!(&state.0, OutgoingState::Connected(current) if Arc::ptr_eq(current, queue_pair)) {
            let queue_pair = std::mem::take(&mut state.0);
            // Destroying it is a system call, for which the lock must not be held.
            drop(state);
            drop(queue_pair);
        }
    }

    fn info(&self, queue_pair: &QueuePair, attempt: u64) -> LocalInfo {
        // Packets of an earlier connection must not match.
        let first_packet = (attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32;
        let port = &self.resources.port;
        let number = queue_pair.number();
        LocalInfo(QueuePairInfo { gid: port.gid, number, first_packet, mtu: port.mtu })
    }

    fn new_queue_pair(&self, depth: u32) -> Result<QueuePair> {
        let DeviceResources { verbs, sends, receive_queue, .. } = &self.resources;
        QueuePair::new_reliable(verbs, sends, receive_queue, depth)
    }

    fn request(&self, peer: PeerId, deadline: Instant) -> Result<Arc<QueuePair>> {
        let queue_pair = self.new_queue_pair(self.options.depth)?;
        let attempt = self.next_attempt.fetch_add(1, Ordering::Relaxed);
        let own = self.info(&queue_pair, attempt);
        let body = ConnectBody::Request(own.0);
        let message = ConnectMessage { group: self.group, sender: self.own, attempt, body };
        lock(&self.replies).insert(attempt, None);
        let reply = self.wait_for_reply(peer, &message, deadline);
        lock(&self.replies).remove(&attempt);
        match reply? {
            ConnectBody::Reply(other) => {
                queue_pair.connect(&self.resources.port, own, RemoteInfo(other), &self.options)?;
                Ok(Arc::new(queue_pair))
            }
            _ => Err(self.failed(peer, Failure::Refused)),
        }
    }

    fn failed(&self, peer: PeerId, failure: Failure) -> Error {
        let doing = format!("connecting to {}", self.peers[peer.0].gid);
        Error::Peer { host: peer.0, doing, failure }
    }

    /// Sends `message` to `peer`, repeatedly, until the reply arrives.
    fn wait_for_reply(
        &self,
        peer: PeerId,
        message: &ConnectMessage,
        deadline: Instant,
    ) -> Result<ConnectBody> {
        let mut interval = RETRY_INTERVAL;
        loop {
            self.resources.datagrams.send(self.peers[peer.0], &message.encode())?;
            let repeat = (Instant::now() + interval).min(deadline);
            let mut replies = lock(&self.replies);
            loop {
                if let Some(Some(body)) = replies.get(&message.attempt) {
                    return Ok(*body);
                }
                let left = repeat.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                replies = self.replied.wait_timeout(replies, left).ignore_poison().0;
            }
            drop(replies);
            if Instant::now() >= deadline {
                return Err(self.failed(peer, Failure::Timeout));
            }
            interval = (2 * interval).min(MAX_RETRY_INTERVAL);
        }
    }

    /// Passes the immediate data of each notification that has arrived to `each`.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn receive_notifications(&self, each: &dyn Fn(u32)) -> Result<()> {
        let receive_queue = &self.resources.receive_queue;
        let mut result = Ok(());
        receive_queue.completions().poll(|completion| {
            if let Some(immediate) = completion.imm_data() {
                each(u32::from_be(immediate));
            }
            // A failed receive has used its slot as well.
            if let Err(error) = receive_queue.post(ReceiveSlot(completion.wr_id())) {
                result = Err(error);
            }
        })?;
        result
    }

    /// Processes the connect messages that have arrived, and replies to requests.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn receive_messages(&self) -> Result<()> {
        let mut messages = Vec::new();
        self.resources.datagrams.receive(|datagram| messages.extend(ConnectMessage::decode(datagram)))?;
        for message in messages {
            let Some(&sender) = valid_sender(&self.peers, self.group, &message) else { continue };
            match message.body {
                ConnectBody::Request(info) => {
                    let body = match self.accept(&message, RemoteInfo(info)) {
                        Ok(Some(own)) => ConnectBody::Reply(own.0),
                        Ok(None) => continue,
                        Err(error) => {
                            tracing::warn!(peer = message.sender, %error, "cannot accept a connection");
                            ConnectBody::Reject
                        }
                    };
                    let reply = ConnectMessage { sender: self.own, body, ..message };
                    // The requester repeats its request if it still exists. The replies to the
                    // other requests must be sent in any case.
                    if let Err(error) = self.resources.datagrams.send(sender, &reply.encode()) {
                        tracing::warn!(peer = message.sender, %error, "cannot reply to a connect message");
                    }
                }
                body => {
                    if let Some(slot) = lock(&self.replies).get_mut(&message.attempt) {
                        *slot = Some(body);
                        self.replied.notify_all();
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes a queue pair that is connected to `other`. Returns `None` for an outdated request.
    fn accept(&self, request: &ConnectMessage, other: RemoteInfo) -> Result<Option<LocalInfo>> {
        let mut accepted = lock(&self.accepted);
        if let Some(current) = accepted.get(&request.sender) {
            if current.attempt == request.attempt {
                return Ok(Some(current.info));
            }
            if current.attempt > request.attempt {
                return Ok(None);
            }
        }
        let queue_pair = self.new_queue_pair(1)?;
        let info = self.info(&queue_pair, request.attempt.rotate_left(32));
        queue_pair.connect(&self.resources.port, info, other, &self.options)?;
        // The requester has discarded the other end of the connection that this one replaces.
        let attempt = request.attempt;
        accepted.insert(request.sender, Accepted { attempt, info, _queue_pair: queue_pair });
        Ok(Some(info))
    }
}

impl Outgoing {
    fn finish(&self, outcome: ConnectOutcome) {
        let mut state = lock(&self.state);
        match outcome {
            ConnectOutcome::Connected(queue_pair) => state.0 = OutgoingState::Connected(queue_pair),
            ConnectOutcome::OutOfTime => state.0 = OutgoingState::Disconnected,
            ConnectOutcome::Failed(failure) => {
                state.0 = OutgoingState::Disconnected;
                state.1 = FailedAttempts { count: state.1.count + 1, last: Some(failure) };
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl ConnectOutcome {
    /// Classifies `error` for the threads that wait for the same connection. The thread that made
    /// it had time until `deadline`, and the option allows until `option_deadline`.
    fn of_error(error: &Error, deadline: Option<Instant>, option_deadline: Instant) -> ConnectOutcome {
        match error {
            // Threads with more time make their own attempt.
            Error::Peer { failure: Failure::Timeout, .. }
                if deadline.is_some_and(|deadline| deadline < option_deadline) =>
            {
                ConnectOutcome::OutOfTime
            }
            Error::Peer { failure, .. } => ConnectOutcome::Failed(*failure),
            _ => ConnectOutcome::Failed(Failure::Timeout),
        }
    }
}

/// Returns the sender of `message`, or `None` for an invalid message, or one of another job on the
/// same network.
fn valid_sender<'p>(
    peers: &'p [DatagramAddress],
    group: GroupId,
    message: &ConnectMessage,
) -> Option<&'p DatagramAddress> {
    let sender = peers.get(message.sender as usize).filter(|_| message.group == group)?;
    match message.body {
        // A peer may request connections only to its own port.
        ConnectBody::Request(info) if info.gid != sender.gid => None,
        _ => Some(sender),
    }
}

/// A guard that reports a failure to the waiting threads if the thread that makes a connection
/// panics.
struct ConnectingGuard<'a>(&'a Outgoing);

impl Drop for ConnectingGuard<'_> {
    fn drop(&mut self) {
        self.0.finish(ConnectOutcome::Failed(Failure::Timeout));
    }
}

/// Returns the wall-clock time in nanoseconds.
fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::gid::Gid;

    #[test]
    fn a_message_is_valid_in_its_group_and_requests_only_its_own_port() {
        let gid = |n| Gid::from_bytes([n; 16]);
        let peers = [1u8, 2].map(|n| DatagramAddress { gid: gid(n), queue_pair: n.into() });
        let info = |n| QueuePairInfo { gid: gid(n), number: 9, first_packet: 0, mtu: 3 };
        let group = GroupId(7);
        let request = ConnectMessage { group, sender: 1, attempt: 0, body: ConnectBody::Request(info(2)) };
        assert_eq!(valid_sender(&peers, group, &request), Some(&peers[1]));
        assert_eq!(valid_sender(&peers, GroupId(8), &request), None);
        assert_eq!(valid_sender(&peers, group, &ConnectMessage { sender: 2, ..request }), None);
        let of_another_port = ConnectMessage { body: ConnectBody::Request(info(1)), ..request };
        assert_eq!(valid_sender(&peers, group, &of_another_port), None);
        let reject = ConnectMessage { body: ConnectBody::Reject, ..request };
        assert_eq!(valid_sender(&peers, group, &reject), Some(&peers[1]));
    }

    #[test]
    fn a_timeout_before_the_option_allows_is_no_failure_for_other_threads() {
        let own = Instant::now();
        let second = Duration::from_secs(1);
        let failed = |failure, deadline| {
            let error = Error::Peer { host: 0, doing: "connecting".into(), failure };
            match ConnectOutcome::of_error(&error, deadline, own) {
                ConnectOutcome::Failed(failure) => Some(failure),
                ConnectOutcome::OutOfTime => None,
                ConnectOutcome::Connected(_) => unreachable!(),
            }
        };
        let timeout = Failure::Timeout;
        assert_eq!(failed(timeout, Some(own - second)), None);
        for deadline in [None, Some(own), Some(own + second)] {
            assert_eq!(failed(timeout, deadline), Some(timeout));
        }
        assert_eq!(failed(Failure::Refused, Some(own - second)), Some(Failure::Refused));
    }
}
