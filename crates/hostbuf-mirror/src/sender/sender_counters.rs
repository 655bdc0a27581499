//! The counts of a sender.

/// The counts of a sender since it was made. The frames are those whose copies the receiver has
/// published, each by the transport of its last attempt. Frames that were given up before the
/// receiver had answered are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SenderCounters {
    /// The number of connections that were made.
    pub connections: u64,
    /// The number of frames whose bytes were sent by TCP.
    pub streamed: u64,
    /// The number of frames that the receiver has read from their blocks by RDMA.
    pub read: u64,
    /// The number of frames that the receiver has read from a copy by RDMA, since the device has
    /// not registered their blocks.
    pub copied: u64,
}

/// The transport of the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameTransport {
    /// TCP.
    Stream,
    /// An RDMA read from the block.
    BlockRead,
    /// An RDMA read from a copy.
    CopyRead,
}

impl SenderCounters {
    /// Counts a frame whose copy is published.
    pub(super) fn count(&mut self, transport: FrameTransport) {
        match transport {
            FrameTransport::Stream => self.streamed += 1,
            FrameTransport::BlockRead => self.read += 1,
            FrameTransport::CopyRead => self.copied += 1,
        }
    }
}
