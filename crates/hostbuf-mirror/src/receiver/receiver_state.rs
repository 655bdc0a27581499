//! The state that the connections of a receiver share.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

use hostbuf_pool::Block;
use nix::sys::socket::{MsgFlags, send};

use super::session::MirrorSession;
use super::source_order::SourceOrder;
use crate::refusal::MirrorRefusal;
use crate::wire::{
    AnswerKind, FrameAnswer, FrameRequest, FrameSource, HelloStatus, ReceiverHello, SenderHello,
};

/// The number of sessions without a connection that a receiver remembers.
const IDLE_SESSIONS: usize = 64;

/// The counts of a receiver since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiverCounters {
    /// The number of connections that are open.
    pub connections: u64,
    /// The number of connections that were accepted.
    pub accepted: u64,
    /// The number of connections that were refused, that broke the protocol, or that were ended for
    /// another one before their first record.
    pub rejected: u64,
    /// The number of frames that were published.
    pub published: u64,
    /// The number of bytes that were published.
    pub bytes: u64,
    /// The number of published frames whose bytes were read by RDMA.
    pub read: u64,
    /// The number of frames that were refused.
    pub refused: u64,
}

/// A connection that was accepted and has not ended.
#[derive(Debug)]
struct AcceptedConnection {
    stream: TcpStream,
    /// True after the peer has sent its hello.
    has_session: bool,
}

/// The state that the connections of a receiver share.
#[derive(Debug, Default)]
pub(super) struct ReceiverState {
    sessions: HashMap<u128, MirrorSession>,
    order: SourceOrder,
    connections: HashMap<u64, AcceptedConnection>,
    /// The number of the next connection. The first is 1.
    last_connection: u64,
    counters: ReceiverCounters,
    pub(super) is_stopped: bool,
}

/// Tells a peer that the receiver has as many connections as it may have. The record is lost if the
/// socket does not take it at once.
fn refuse(stream: &TcpStream) {
    let record = ReceiverHello::refusing(HelloStatus::Busy).encode();
    let _ = send(stream.as_raw_fd(), &record, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
}

impl ReceiverState {
    /// Returns the counts.
    pub(super) fn counters(&self) -> ReceiverCounters {
        ReceiverCounters { connections: self.connections.len() as u64, ..self.counters }
    }

    /// Adds a connection, and returns its number. If there are `most` already, it refuses the
    /// oldest of those whose peer has not sent a hello, or `stream` if there is no such connection,
    /// and returns `None` then: peers that only connect keep no sender away.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub(super) fn add_connection(&mut self, stream: &TcpStream, most: u32) -> io::Result<Option<u64>> {
        let stream = stream.try_clone()?;
        if self.connections.len() >= most as usize {
            let silent = self.connections.iter().filter(|(_, open)| !open.has_session);
            if let Some((&oldest, open)) = silent.min_by_key(|(number, _)| **number) {
                refuse(&open.stream);
                self.remove_connection(oldest, true);
            }
        }
        if self.is_stopped || self.connections.len() >= most as usize {
            refuse(&stream);
            self.counters.rejected += 1;
            return Ok(None);
        }
        self.last_connection += 1;
        self.connections.insert(self.last_connection, AcceptedConnection { stream, has_session: false });
        Ok(Some(self.last_connection))
    }

    /// Removes a connection.
    pub(super) fn remove_connection(&mut self, connection: u64, broke_the_protocol: bool) {
        // A forked child of this process may have the descriptor, and would keep the peer waiting.
        if let Some(open) = self.connections.remove(&connection) {
            let _ = open.stream.shutdown(Shutdown::Both);
        }
        self.counters.rejected += u64::from(broke_the_protocol);
        for session in self.sessions.values_mut().filter(|session| session.connection == connection) {
            session.stream = None;
        }
    }

    /// Ends all connections.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        for open in self.connections.values() {
            let _ = open.stream.shutdown(Shutdown::Both);
        }
    }

    /// Gives a connection to a sender's session, and ends the one that the session had before.
    /// Returns the number of the last frame that was answered, and the answers that the sender has
    /// missed.
    ///
    /// # Errors
    /// As `dup(2)`; `ECONNABORTED` if the connection was ended for another one.
    pub(super) fn begin_session(
        &mut self,
        hello: &SenderHello,
        connection: u64,
        stream: &TcpStream,
    ) -> io::Result<(u64, Vec<FrameAnswer>)> {
        let stream = stream.try_clone()?;
        let open = self.connections.get_mut(&connection);
        open.ok_or(io::ErrorKind::ConnectionAborted)?.has_session = true;
        if !self.sessions.contains_key(&hello.session) {
            self.forget_old_sessions();
        }
        let session =
            self.sessions.entry(hello.session).or_insert_with(|| MirrorSession::new(hello.answered));
        if let Some(before) = session.stream.replace(stream) {
            // The peer has lost that connection, and this host may not know it yet.
            let _ = before.shutdown(Shutdown::Both);
        }
        (session.connection, session.last_used) = (connection, Instant::now());
        self.counters.accepted += 1;
        let answers = session.answers_after(hello.answered);
        Ok((session.settled, answers))
    }

    fn forget_old_sessions(&mut self) {
        let idle = self.sessions.iter().filter(|(_, session)| session.stream.is_none());
        if idle.clone().count() >= IDLE_SESSIONS {
            let oldest = idle.min_by_key(|(_, session)| session.last_used).map(|(number, _)| *number);
            oldest.map(|oldest| self.sessions.remove(&oldest));
        }
    }

    /// Returns whether a connection serves its session: it does not if the sender has connected
    /// again, or if the receiver ends.
    pub(super) fn serves(&self, session: u128, connection: u64) -> bool {
        !self.is_stopped
            && self.sessions.get(&session).is_some_and(|session| session.connection == connection)
    }

    /// Checks that a frame is newer than those of its segment that were published.
    ///
    /// # Errors
    /// [`MirrorRefusal::NotNewer`].
    pub(super) fn check_order(&self, request: &FrameRequest) -> Result<(), MirrorRefusal> {
        self.order.check(request)
    }

    /// Publishes a frame, or refuses it, and returns the answer. Returns `None` if the connection
    /// does not serve the session any more; then nothing is published.
    pub(super) fn commit(
        &mut self,
        (session, connection): (u128, u64),
        request: &FrameRequest,
        received: Result<Block, MirrorRefusal>,
    ) -> Option<FrameAnswer> {
        if !self.serves(session, connection) {
            return None;
        }
        let kind = received.and_then(|block| self.publish(request, block));
        match &kind {
            Ok(copy) => {
                self.counters.published += 1;
                self.counters.bytes += copy.length;
                self.counters.read += u64::from(request.source != FrameSource::Stream);
            }
            Err(_) => self.counters.refused += 1,
        }
        let answer = FrameAnswer { number: request.number, kind };
        self.sessions.get_mut(&session)?.note(answer.clone());
        Some(answer)
    }

    fn publish(&mut self, request: &FrameRequest, block: Block) -> AnswerKind {
        // Another session may have sent the frame meanwhile.
        self.order.check(request)?;
        let copy = block
            .publish_with(request.header)
            .map_err(|error| MirrorRefusal::Pool { why: error.to_string() })?;
        self.order.note(request, copy);
        Ok(copy)
    }
}
