//! A packet that waits until a client reads.

use hostbuf_os::PrivateFd;

/// A packet that waits, with its own descriptors.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub(super) packet: Vec<u8>,
    pub(super) descriptors: Vec<PrivateFd>,
}
