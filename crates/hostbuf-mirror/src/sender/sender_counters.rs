//! The counts of a sender.

/// The counts of a sender since it was made. A frame that was sent again counts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SenderCounters {
    /// The number of connections that were made.
    pub connections: u64,
    /// The number of frames whose bytes were sent by TCP.
    pub streamed: u64,
    /// The number of frames that the receiver was let read from their blocks by RDMA.
    pub offered: u64,
    /// The number of frames that the receiver was let read from a copy by RDMA, since the device
    /// has not registered their blocks.
    pub copied: u64,
}
