//! The thread that receives the broker's messages for a client, and connects to its successor.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hostbuf_os::FrameSocket;
use hostbuf_os::poison::IgnorePoison;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;

use super::attached_segment::AttachedSegment;
use super::broker_link::send;
use super::connection::PoolConnection;
use super::producer_segment::ProducerSegment;
use super::reconnect_attempts::ReconnectAttempts;
use crate::private_packet::PrivatePacket;
use crate::segment::SpaceEvent;
use crate::wire::PoolMessage;

/// The first pause between two attempts to connect to a new broker; each further pause is twice as
/// long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The time after which a connection counts as stable.
const STABLE: Duration = Duration::from_secs(1);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_millis(320);

/// Receives messages until the last handle of the client is gone. `stop` wakes the thread.
pub(super) fn serve(connection: &Weak<PoolConnection>, stop: &SpaceEvent) {
    // The program's handlers run in the program's threads.
    let _ = SigSet::all().thread_block();
    let (mut connected, mut last_pool, mut pause) = (Instant::now(), None, FIRST_PAUSE);
    loop {
        // Only a weak reference is kept while the thread sleeps.
        let Some(strong) = connection.upgrade() else { return };
        let socket = strong.link.socket();
        match socket {
            Some(socket) => {
                drop(strong);
                match wait(&socket, stop) {
                    ServiceEvent::Stop => return,
                    ServiceEvent::Nothing => continue,
                    ServiceEvent::Message => {}
                }
                let Some(strong) = connection.upgrade() else { return };
                if !receive(&strong, &socket) {
                    strong.link.disconnect();
                }
            }
            None => {
                // A broker that ends connections at once must not be asked in a loop.
                let pool = Some(strong.link.pool());
                let is_again = pool == last_pool && connected.elapsed() < STABLE;
                last_pool = pool;
                drop(strong);
                pause = if is_again { (pause * 2).min(LAST_PAUSE) } else { FIRST_PAUSE };
                if !reconnect(connection, stop, pause) {
                    return;
                }
                connected = Instant::now();
            }
        }
    }
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceEvent {
    /// The client has ended.
    Stop,
    /// A message, or the end of the connection, can be received.
    Message,
    /// A signal has ended the wait.
    Nothing,
}

/// Waits for a message.
fn wait(socket: &FrameSocket, stop: &SpaceEvent) -> ServiceEvent {
    let mut fds =
        [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::NONE).is_err() {
        return ServiceEvent::Nothing;
    }
    match fds.map(|fd| fd.any().unwrap_or(false)) {
        [_, true] => ServiceEvent::Stop,
        [true, _] => ServiceEvent::Message,
        _ => ServiceEvent::Nothing,
    }
}

/// Receives a message. Returns false if the connection has ended.
fn receive(connection: &PoolConnection, socket: &FrameSocket) -> bool {
    let PrivatePacket { bytes, descriptors } = match PrivatePacket::receive(socket) {
        Ok(Some(packet)) => packet,
        Ok(None) => return true,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return false,
        Err(error) => {
            tracing::warn!(%error, "receiving from the pool's broker");
            return false;
        }
    };
    if !descriptors.is_empty() && has_hung_up(socket) {
        // A later broker may have counted the memory as free while its descriptors were in no
        // process. They are closed, and the request goes to that broker.
        return false;
    }
    let (request, is_last, unclaimed) = match PoolMessage::parse(&bytes) {
        Ok(PoolMessage::Granted { request, key }) => (request, true, Some((key, None))),
        Ok(PoolMessage::Attached { request, key, row, .. }) => (request, true, Some((key, Some(row)))),
        Ok(PoolMessage::Refused { request, .. }) => (request, true, None),
        Ok(PoolMessage::StatusPart { request, text }) => (request, text.is_empty(), None),
        Ok(PoolMessage::Ready { key }) => {
            if let Some(segment) = connection.produced(key) {
                segment.set_ready();
            }
            return true;
        }
        Ok(PoolMessage::Detach { key }) => {
            connection.detach(key);
            return true;
        }
        _ => {
            tracing::warn!("the pool's broker has sent an unexpected message");
            return false;
        }
    };
    let was_claimed = connection.link.answer(request, is_last, (bytes, descriptors));
    match unclaimed.filter(|_| !was_claimed) {
        // Its request has timed out, and its files are closed.
        Some((key, None)) => connection.link.give_up(key),
        Some((key, row)) => connection.link.notify(&PoolMessage::Detached { key, row }),
        None => {}
    }
    true
}

/// Returns whether the broker at the other end has closed the connection.
fn has_hung_up(socket: &FrameSocket) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    let hung_up = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLHUP));
    poll(&mut fds, PollTimeout::ZERO).is_ok() && hung_up(&fds[0])
}

/// Connects to a new broker and hands back what this client has. Returns false if the client has
/// ended.
fn reconnect(connection: &Weak<PoolConnection>, stop: &SpaceEvent, mut pause: Duration) -> bool {
    let mut attempts = ReconnectAttempts::new();
    loop {
        let timeout = PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, timeout).is_ok() && fds[0].any().unwrap_or(false) {
            return false;
        }
        pause = (pause * 2).min(LAST_PAUSE);
        let Some(strong) = connection.upgrade() else { return false };
        let Some(open) = attempts.connect_or_start(&strong.options, strong.identity) else { continue };
        let socket = Arc::new(open.socket);
        let changing = strong.changing.write().ignore_poison();
        let held = (strong.all_produced(), strong.all_attached());
        if !hand_back(&held, &socket) {
            continue;
        }
        strong.link.connect(socket, open.pool, open.client_file);
        drop(changing);
        // A segment whose last use has ended meanwhile ends here, and the new broker is told.
        drop(held);
        return true;
    }
}

/// Hands back all segments. Returns false if the connection has ended.
fn hand_back(
    (produced, attached): &(Vec<Arc<ProducerSegment>>, Vec<Arc<AttachedSegment>>),
    socket: &FrameSocket,
) -> bool {
    produced.iter().all(|segment| patiently(|| segment.hand_back(socket)))
        && attached.iter().all(|segment| patiently(|| segment.hand_back(socket)))
        && send(socket, &PoolMessage::HandedBack, &[]).is_ok()
}

/// Sends until not too many descriptors of this user are on their way to other processes: after the
/// death of a broker, all of its clients send theirs. Returns false if the connection has ended.
fn patiently(send: impl Fn() -> io::Result<()>) -> bool {
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        match send() {
            Ok(()) => return true,
            Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                std::thread::sleep(FIRST_PAUSE);
            }
            Err(_) => return false,
        }
    }
    false
}
