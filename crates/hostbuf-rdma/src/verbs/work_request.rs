//! Work requests: one operation of a device each.

/// A key by which the own device may access a part of this process's memory (lkey).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalKey(pub(crate) u32);

/// A key by which a peer may access a part of the memory of another process (rkey).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteKey(pub(crate) u32);

/// A part of this process's memory that a device may access by a local key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalSegment {
    pub(crate) address: usize,
    pub(crate) length: u32,
    pub(crate) lkey: LocalKey,
}

impl LocalSegment {
    /// The segment of requests that transfer no bytes.
    pub(crate) const EMPTY: LocalSegment = LocalSegment { address: 0, length: 0, lkey: LocalKey(0) };
}

/// An address in the memory of another process, with the key by which it may be accessed. The
/// length is that of the request's local segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteSegment {
    pub(crate) address: u64,
    pub(crate) rkey: RemoteKey,
}

impl RemoteSegment {
    /// The segment of a request that is posted only to fail.
    pub(crate) const NONE: RemoteSegment = RemoteSegment { address: 0, rkey: RemoteKey(0) };

    /// Returns the segment that begins `bytes` later.
    pub(crate) fn offset(self, bytes: usize) -> RemoteSegment {
        RemoteSegment { address: self.address + bytes as u64, ..self }
    }
}

/// The operation of a work request on remote memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// Writes the local segment to the remote one.
    Write(RemoteSegment),
    /// Writes, and then delivers `immediate` to the other process.
    WriteWithImmediate { remote: RemoteSegment, immediate: u32 },
    /// Reads the remote segment into the local one.
    Read(RemoteSegment),
    /// Adds to a remote 64-bit word, and reads its previous value.
    FetchAdd { remote: RemoteSegment, add: u64 },
}

impl Operation {
    pub(crate) fn remote(&self) -> RemoteSegment {
        match *self {
            Operation::Write(remote)
            | Operation::WriteWithImmediate { remote, .. }
            | Operation::Read(remote)
            | Operation::FetchAdd { remote, .. } => remote,
        }
    }
}

/// A work request for a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest {
    /// The identifier that its completion carries.
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) local: LocalSegment,
    /// True if it makes a completion also when it succeeds.
    pub(crate) signaled: bool,
}
