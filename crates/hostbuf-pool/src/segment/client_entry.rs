//! The client of a row, or the producer, as the block table names it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bit of a client with a lock on the table.
const LOCKED: u64 = 1 << 32;

/// A client of a segment, in the block table. The broker writes it, so that its successor knows
/// whom the segment belongs to.
#[repr(C)]
pub(crate) struct ClientEntry {
    /// The identity of the client, 0 if there is none.
    identity: AtomicU64,
    /// The hash of the client's name.
    name: AtomicU64,
    /// The process id, and [`LOCKED`].
    process: AtomicU64,
    started: AtomicU64,
    pid_namespace: AtomicU64,
    /// The number of clients that had the entry and have left it.
    departures: AtomicU64,
}

/// The contents of a [`ClientEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientIdentity {
    /// The random number that the client has drawn, not 0.
    pub(crate) identity: u64,
    /// The hash of the client's name.
    pub(crate) name: u64,
    /// The process id, 0 if it was not visible to the broker.
    pub(crate) pid: i32,
    /// The start time of the process in clock ticks after boot.
    pub(crate) started: u64,
    /// The inode number of the broker's PID namespace, in which `pid` is valid.
    pub(crate) pid_namespace: u64,
    /// True if the client has a lock on the table for as long as it has the segment.
    pub(crate) is_locked: bool,
}

impl ClientEntry {
    /// Names a client.
    pub(crate) fn set(&self, client: ClientIdentity) {
        self.name.store(client.name, Ordering::Relaxed);
        let locked = if client.is_locked { LOCKED } else { 0 };
        self.process.store(u64::from(client.pid as u32) | locked, Ordering::Relaxed);
        self.started.store(client.started, Ordering::Relaxed);
        self.pid_namespace.store(client.pid_namespace, Ordering::Relaxed);
        self.identity.store(client.identity, Ordering::Release);
    }

    /// Names no client.
    pub(crate) fn clear(&self) {
        self.identity.store(0, Ordering::Release);
    }

    /// Counts a client that has left the entry, after its holds are cleared.
    pub(crate) fn count_departure(&self) {
        self.departures.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of clients that have left the entry.
    pub(crate) fn departures(&self) -> u64 {
        self.departures.load(Ordering::Acquire)
    }

    /// Returns the client, if there is one.
    pub(crate) fn load(&self) -> Option<ClientIdentity> {
        let identity = self.identity.load(Ordering::Acquire);
        let process = self.process.load(Ordering::Relaxed);
        (identity != 0).then(|| ClientIdentity {
            identity,
            name: self.name.load(Ordering::Relaxed),
            pid: process as i32,
            started: self.started.load(Ordering::Relaxed),
            pid_namespace: self.pid_namespace.load(Ordering::Relaxed),
            is_locked: process & LOCKED != 0,
        })
    }
}
