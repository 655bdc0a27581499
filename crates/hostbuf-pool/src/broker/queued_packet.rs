//! A packet that waits until a client reads.

use std::os::fd::OwnedFd;

/// A packet that waits, with its own descriptors.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub(super) packet: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}
