//! The threads of a receiver.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use hostbuf_os::thread::{self, Thread};
use nix::poll::PollFlags;

use super::peer_link::{LinkEnd, PeerLink, ReceiverShared};
use super::timed_stream::TimedStream;
use crate::readiness::{WakeEvent, wait};

/// Accepts connections until the receiver is stopped, and waits for their threads.
pub(super) fn accept_all(shared: &Arc<ReceiverShared>, listener: &TcpListener, stop: &WakeEvent) {
    let mut threads: Vec<Thread> = Vec::new();
    while !shared.state().is_stopped {
        let ready = wait(Some((listener.as_fd(), PollFlags::POLLIN)), stop, None);
        let (ended, alive) = threads.into_iter().partition(Thread::is_finished);
        threads = alive;
        Vec::into_iter(ended).for_each(Thread::join);
        match ready.and_then(|events| accept(listener, events)) {
            Ok(Some(stream)) => match begin(shared, stream) {
                Ok(thread) => threads.extend(thread),
                Err(error) => tracing::warn!(%error, "a mirror cannot serve a connection"),
            },
            Ok(None) => {}
            // Without descriptors the queue of the listener stays full, so the thread must sleep.
            Err(error) => {
                tracing::warn!(%error, "a mirror cannot accept a connection");
                let pause = std::time::Instant::now() + std::time::Duration::from_millis(100);
                let _ = wait(None, stop, Some(pause));
            }
        }
    }
    threads.into_iter().for_each(Thread::join);
}

fn accept(listener: &TcpListener, events: PollFlags) -> io::Result<Option<TcpStream>> {
    if events.is_empty() {
        return Ok(None);
    }
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            // The peer has given up meanwhile.
            io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// Starts the thread of a connection, if there may be another one.
fn begin(shared: &Arc<ReceiverShared>, stream: TcpStream) -> io::Result<Option<Thread>> {
    let Some(number) = shared.state().add_connection(&stream, shared.options.connections)? else {
        return Ok(None);
    };
    let of_thread = shared.clone();
    let started = thread::spawn(c"hostbuf-mirror", move || serve(&of_thread, stream, number));
    Ok(Some(started.inspect_err(|_| shared.state().remove_connection(number, false))?))
}

/// One of the connections that a receiver may have. It is free again after a panic, too.
struct ConnectionSlot<'s> {
    shared: &'s ReceiverShared,
    connection: u64,
    broke_the_protocol: bool,
}

impl Drop for ConnectionSlot<'_> {
    fn drop(&mut self) {
        self.shared.state().remove_connection(self.connection, self.broke_the_protocol);
    }
}

fn serve(shared: &Arc<ReceiverShared>, stream: TcpStream, connection: u64) {
    let peer = stream.peer_addr().map_or_else(|_| "a peer".to_owned(), |address| address.to_string());
    let mut slot = ConnectionSlot { shared, connection, broke_the_protocol: false };
    let served = TimedStream::new(stream, shared.options.timeout)
        .map_err(LinkEnd::Lost)
        .and_then(|stream| PeerLink::new(shared.clone(), stream, connection).serve());
    slot.broke_the_protocol = matches!(served, Err(LinkEnd::Invalid(_)));
    drop(slot);
    match served {
        Err(LinkEnd::Invalid(why)) => tracing::warn!(peer, %why, "a mirror has ended a connection"),
        Err(LinkEnd::Lost(error)) => tracing::debug!(peer, %error, "a mirror has lost a connection"),
        Ok(()) | Err(LinkEnd::Superseded) => tracing::debug!(peer, "a connection of a mirror has ended"),
    }
}
