//! The server's side of a session, up to the client's hello.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use hostbuf_protocol::failure::{ErrorClass, ErrorRecord};
use hostbuf_protocol::frame::{self, FrameError};
use hostbuf_protocol::message::Message;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::frame_socket::{FrameSocket, Packet, Received};
use crate::socket;

/// The largest number of connections without a hello; beyond it the acceptor refuses one that is
/// not a client's. Each holds two descriptors.
const MAX_PENDING: usize = 64;
/// The time after which a silent connection is not a client's: a client says hello as soon as it is
/// connected.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval at which the acceptor tries again without room for another connection: other
/// processes may use up the descriptors of the host, and close them soon.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The time for which a connection waits for descriptors that other clients hold.
const DESCRIPTOR_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of connections that are accepted at once, so that the server's clients do not
/// wait for them.
const BATCH: usize = 64;

/// The acceptor of a server. It accepts connections, checks their users, and collects their hellos
/// without blocking. A connection that sends anything else, or nothing, costs only itself.
#[derive(Debug)]
pub struct Acceptor {
    listener: OwnedFd,
    /// The connections whose hello is on its way, in the order of their arrival.
    pending: Vec<PendingConnection>,
    /// A connection whose process cannot be watched for a lack of descriptors or memory. Until it
    /// has its second descriptor, no further one is accepted: connections without one would take
    /// the descriptors that others free.
    deferred: Option<PendingConnection>,
    /// A descriptor that is given up for a connection if there is no other, so that its client gets
    /// a refusal instead of no answer.
    spare: Option<OwnedFd>,
    shortage: Option<DescriptorShortage>,
}

/// A connection without a hello.
#[derive(Debug)]
struct PendingConnection {
    connection: FrameSocket,
    /// The descriptor of the client's process, which may outlive its connection.
    process: Option<OwnedFd>,
    since: Instant,
}

/// A client that has said hello.
#[derive(Debug)]
#[non_exhaustive]
pub struct AcceptedClient {
    /// The connection, which has the credentials of the client.
    pub connection: FrameSocket,
    /// The packet with the hello.
    pub hello: Packet,
    /// The descriptor that becomes readable when the client's process ends. `None` if the process
    /// has ended, or is in another PID namespace and the kernel is older than Linux 6.5.
    pub process: Option<OwnedFd>,
}

/// A lack of descriptors or memory, for which clients wait.
#[derive(Debug)]
#[non_exhaustive]
pub struct DescriptorShortage {
    /// The time since which no client could be accepted.
    pub since: Instant,
    /// The kernel's error.
    pub error: io::Error,
}

impl Acceptor {
    /// Makes an acceptor of the clients of `listener`, which must not block.
    #[must_use]
    pub fn new(listener: OwnedFd) -> Acceptor {
        let spare = listener.try_clone().ok();
        Acceptor { listener, pending: Vec::new(), deferred: None, spare, shortage: None }
    }

    /// Returns the descriptors for whose input the server waits before it calls
    /// [`advance`](Acceptor::advance).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // Without room for a connection, the listener would be readable all the time.
        let listener = self.shortage.is_none().then(|| self.listener.as_fd());
        listener.into_iter().chain(self.pending.iter().map(|pending| pending.connection.as_fd()))
    }

    /// Returns the time after which the server calls [`advance`](Acceptor::advance) without input.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.shortage.as_ref().map(|_| RETRY_INTERVAL)
    }

    /// Returns the lack for which clients wait.
    #[must_use]
    pub fn shortage(&self) -> Option<&DescriptorShortage> {
        self.shortage.as_ref()
    }

    /// Returns the time for which the hello of an accepted connection may be on its way, or `None`
    /// if there is no such connection. A server that is about to end waits so long.
    #[must_use]
    pub fn expects_within(&self) -> Option<Duration> {
        let left = |pending: &PendingConnection| HELLO_TIMEOUT.checked_sub(pending.since.elapsed());
        let deferred = self.deferred.as_ref().map(|_| RETRY_INTERVAL);
        self.pending.iter().filter_map(left).chain(deferred).max()
    }

    /// Accepts what has arrived, and returns the clients that have said hello.
    pub fn advance(&mut self) -> Vec<AcceptedClient> {
        let mut clients = Vec::new();
        if let Some(deferred) = self.deferred.take() {
            self.watch(deferred);
        }
        if self.spare.is_none() && self.deferred.is_none() {
            self.spare = self.listener.try_clone().ok();
        }
        self.accept();
        self.receive_hellos(&mut clients);
        // After the hellos that have arrived: a client that has sent its hello is not refused.
        if self.shortage.is_some() && self.refuse_pending() && self.deferred.is_none() {
            // With one connection less there is room again in the next turn.
            self.shortage = None;
        }
        clients
    }

    fn accept(&mut self) {
        for _ in 0..BATCH {
            if self.deferred.is_some() {
                return;
            }
            let fd = match socket::accept(self.listener.as_fd()) {
                Ok(Some(fd)) => fd,
                Ok(None) => {
                    self.shortage = None;
                    return;
                }
                Err(_) if self.spare.take().is_some() => continue,
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection");
                    return self.record_shortage(error);
                }
            };
            match FrameSocket::from_fd(fd) {
                Ok(connection) => {
                    self.watch(PendingConnection { connection, process: None, since: Instant::now() });
                }
                // Another user gets nothing, not even a reason.
                Err(error) => tracing::debug!(%error, "rejecting a connection"),
            }
            if self.pending.len() > MAX_PENDING {
                self.refuse_pending();
            }
        }
    }

    fn record_shortage(&mut self, error: io::Error) {
        let since = self.shortage.as_ref().map_or_else(Instant::now, |shortage| shortage.since);
        self.shortage = Some(DescriptorShortage { since, error });
    }

    /// Receives the hellos that have arrived.
    fn receive_hellos(&mut self, clients: &mut Vec<AcceptedClient>) {
        if self.pending.is_empty() {
            return;
        }
        let mut fds: Vec<_> = self
            .pending
            .iter()
            .map(|pending| PollFd::new(pending.connection.as_fd(), PollFlags::POLLIN))
            .collect();
        // An error of poll shows again in the next turn.
        if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        let mut ready = ready.into_iter();
        let readable = self.pending.extract_if(.., |_| ready.next().unwrap_or(false)).collect::<Vec<_>>();
        for pending in readable {
            let pid = pending.connection.peer().pid;
            let hello = match pending.connection.receive() {
                Ok(Received::Packet(packet)) => packet,
                Ok(Received::Nothing) => {
                    self.pending.push(pending);
                    continue;
                }
                Ok(Received::End) => continue,
                Err(error) => {
                    tracing::warn!(pid, %error, "receiving a hello");
                    continue;
                }
            };
            match hello.message() {
                Ok(Message::Hello { .. }) => {
                    let PendingConnection { connection, process, .. } = pending;
                    clients.push(AcceptedClient { connection, hello, process });
                }
                Err(FrameError::OtherVersion(theirs)) => refuse_version(&pending.connection, theirs),
                Ok(_) | Err(FrameError::Malformed) => {
                    tracing::warn!(pid, "a process sent something other than a hello");
                }
            }
        }
    }

    /// Adds a connection whose process can be watched. Without descriptors or memory for that, the
    /// connection waits for them, and is refused if others hold them for too long.
    fn watch(&mut self, mut pending: PendingConnection) {
        match socket::peer_process(pending.connection.as_fd()) {
            Ok(process) => pending.process = Some(process),
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) =>
            {
                if pending.since.elapsed() > DESCRIPTOR_TIMEOUT {
                    let text = format!(
                        "this host's server of hostbuf has no descriptor for another process (raise ulimit -n there): {error}"
                    );
                    self.record_shortage(error);
                    return refuse(&pending.connection, ErrorClass::Os, &text);
                }
                self.record_shortage(error);
                self.deferred = Some(pending);
                return;
            }
            // The process has ended, or is in another PID namespace of an older kernel.
            Err(_) => {}
        }
        self.shortage = None;
        self.pending.push(PendingConnection { since: Instant::now(), ..pending });
    }

    /// Refuses the oldest connection of the process that has the most of them, or else one that has
    /// been silent for too long, and returns whether there was one. A client is safe: it has a
    /// single, recent connection.
    fn refuse_pending(&mut self) -> bool {
        let mut count: BTreeMap<i32, usize> = BTreeMap::new();
        // The processes of another PID namespace all have the number 0.
        let pids = self.pending.iter().map(|pending| pending.connection.peer().pid);
        pids.filter(|&pid| pid != 0).for_each(|pid| *count.entry(pid).or_default() += 1);
        let flooder = count.iter().max_by_key(|(_, n)| **n).filter(|(_, n)| **n > 1).map(|(pid, _)| *pid);
        let oldest = match flooder {
            Some(pid) => self.pending.iter().position(|pending| pending.connection.peer().pid == pid),
            None => self.pending.iter().position(|pending| pending.since.elapsed() > HELLO_TIMEOUT),
        };
        let Some(index) = oldest else { return false };
        let pending = self.pending.remove(index);
        let text =
            "the connection was silent, and the server has too many silent ones: send the hello at once";
        refuse(&pending.connection, ErrorClass::Os, text);
        true
    }
}

/// Tells a client of another version of the protocol why it gets no session. It cannot read this
/// version's messages either, but it recognises their version.
fn refuse_version(connection: &FrameSocket, theirs: u16) {
    let (pid, own) = (connection.peer().pid, frame::VERSION);
    tracing::warn!(pid, theirs, own, "a client has another version");
    let text = format!(
        "this host's server of hostbuf has version {own} of its protocol, not {theirs}: use one installation"
    );
    refuse(connection, ErrorClass::Attach, &text);
}

/// Sends a refusal, if the client's socket has room for it.
fn refuse(connection: &FrameSocket, class: ErrorClass, text: &str) {
    let refusal = Message::Refused { error: ErrorRecord::new(class, text) };
    if let Err(error) = connection.send(&refusal, &[]) {
        tracing::debug!(%error, "refusing a client");
    }
}
