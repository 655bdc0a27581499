//! A client of the broker.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

use hostbuf_os::session::AcceptedClient;
use hostbuf_os::{FrameSocket, process};

use super::predecessor::own_pid_namespace;
use super::queued_packet::QueuedPacket;
use crate::name_hash::name_hash;
use crate::segment::ClientIdentity;
use crate::wire::SegmentKey;

/// A client of the broker.
#[derive(Debug)]
pub(super) struct ClientRecord {
    /// The identity that the client has drawn; it keeps it with a successor of this broker.
    pub(super) identity: u64,
    /// The name, for people and for producers that wait for it.
    pub(super) name: String,
    /// The process id in the PID namespace of the broker, 0 if it is not visible there.
    pub(super) pid: i32,
    /// The start time of the process, 0 if it is not visible.
    started: u64,
    /// The connection, `None` after its end.
    pub(super) connection: Option<FrameSocket>,
    /// The descriptor of the process, `None` if the kernel has none for it.
    pub(super) process: Option<OwnedFd>,
    /// The packets that wait for the client to read.
    pub(super) outbox: VecDeque<QueuedPacket>,
    /// The end of the connection, if the process may still run.
    pub(super) disconnected: Option<Instant>,
    /// The segments that the client has named since it connected, each with its row.
    pub(super) confirmed: BTreeSet<(SegmentKey, Option<u32>)>,
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
            started: process::start_time(pid).unwrap_or(0),
            connection: Some(client.connection),
            process: client.process,
            outbox: VecDeque::new(),
            disconnected: None,
            confirmed: BTreeSet::new(),
            has_handed_back: false,
        }
    }

    /// Goes on with a new connection of the same process.
    pub(super) fn reconnect(&mut self, client: AcceptedClient) {
        self.connection = Some(client.connection);
        self.process = client.process;
        self.disconnected = None;
        self.outbox.clear();
        self.confirmed.clear();
        self.has_handed_back = false;
    }

    /// Returns the client as a block table names it, without a lock.
    pub(super) fn to_entry(&self) -> ClientIdentity {
        ClientIdentity {
            identity: self.identity,
            name: name_hash(&self.name),
            pid: self.pid,
            started: self.started,
            pid_namespace: own_pid_namespace(),
            is_locked: false,
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
