//! A client of the broker.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use hostbuf_os::FrameSocket;
use hostbuf_os::session::AcceptedClient;

use super::queued_packet::QueuedPacket;

/// A client of the broker.
#[derive(Debug)]
pub(super) struct ClientRecord {
    /// The identity that the client has drawn; it keeps it with a successor of this broker.
    pub(super) identity: u64,
    /// The name, for people and for producers that wait for it.
    pub(super) name: String,
    /// The process id in the PID namespace of the broker, 0 if it is not visible there.
    pub(super) pid: i32,
    /// The connection, `None` after its end.
    pub(super) connection: Option<FrameSocket>,
    /// The descriptor of the process, `None` if the kernel has none for it.
    pub(super) process: Option<OwnedFd>,
    /// The packets that wait for the client to read.
    pub(super) outbox: VecDeque<QueuedPacket>,
    /// The end of the connection, if the process may still run.
    pub(super) disconnected: Option<Instant>,
    /// False until a client of an earlier broker has handed back what it has.
    pub(super) has_handed_back: bool,
}

impl ClientRecord {
    pub(super) fn new(client: AcceptedClient, identity: u64, name: String) -> ClientRecord {
        let pid = client.connection.peer().pid;
        ClientRecord {
            identity,
            name,
            pid,
            connection: Some(client.connection),
            process: client.process,
            outbox: VecDeque::new(),
            disconnected: None,
            has_handed_back: false,
        }
    }

    /// Describes the client: `camera (process 41)`.
    pub(super) fn describe(&self) -> String {
        match self.pid {
            0 => format!("{} (in another PID namespace)", self.name),
            pid => format!("{} (process {pid})", self.name),
        }
    }
}
