//! The options of a receiver.

use std::time::Duration;

use hostbuf_pool::ProducerOptions;

use crate::error::MirrorError;
use crate::time_limit::check_time;

/// The options of a [`MirrorReceiver`](crate::MirrorReceiver).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorReceiverOptions {
    /// The length of a block in bytes. For a longer frame the receiver makes a segment of longer
    /// blocks, and releases the previous one.
    pub block_bytes: u64,
    /// The number of blocks. A segment has fewer if the limit allows no more, and at least 2.
    pub blocks: u32,
    /// The number of published copies that late readers may still acquire. `None` means half of
    /// the blocks.
    pub retain: Option<u32>,
    /// The largest number of bytes of the blocks. A frame has at most half of it.
    pub limit: u64,
    /// The number of processes that may read the copies at the same time.
    pub readers: u32,
    /// The largest number of connections.
    pub connections: u32,
    /// The time within which a peer sends its first record, and the longest time for one frame,
    /// whatever time its sender gives it.
    pub timeout: Duration,
    /// The name of the stream, for people.
    pub stream: String,
    /// The device by which the receiver reads the bytes of frames by RDMA, if the sender has one
    /// too. `None` means that all bytes come by TCP.
    #[cfg(feature = "rdma")]
    pub rdma: Option<hostbuf_rdma::ReadDevice>,
}

impl MirrorReceiverOptions {
    /// The default of [`limit`](MirrorReceiverOptions::limit). It leaves room for tables within the
    /// default limit of a broker for one client.
    pub const LIMIT: u64 = 240 << 20;
    /// The default of [`blocks`](MirrorReceiverOptions::blocks).
    pub const BLOCKS: u32 = 8;
    /// The default of [`connections`](MirrorReceiverOptions::connections).
    pub const CONNECTIONS: u32 = 16;
    /// The default of [`timeout`](MirrorReceiverOptions::timeout).
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// Makes the default options.
    #[must_use]
    pub fn new() -> MirrorReceiverOptions {
        MirrorReceiverOptions {
            block_bytes: 4096,
            blocks: MirrorReceiverOptions::BLOCKS,
            retain: None,
            limit: MirrorReceiverOptions::LIMIT,
            readers: ProducerOptions::READERS,
            connections: MirrorReceiverOptions::CONNECTIONS,
            timeout: MirrorReceiverOptions::TIMEOUT,
            stream: "mirror".into(),
            #[cfg(feature = "rdma")]
            rdma: None,
        }
    }

    /// Sets the length of a block in bytes.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u64) -> MirrorReceiverOptions {
        self.block_bytes = bytes;
        self
    }

    /// Sets the number of blocks.
    #[must_use]
    pub fn blocks(mut self, blocks: u32) -> MirrorReceiverOptions {
        self.blocks = blocks;
        self
    }

    /// Sets the number of published copies that late readers may still acquire.
    #[must_use]
    pub fn retain(mut self, last: u32) -> MirrorReceiverOptions {
        self.retain = Some(last);
        self
    }

    /// Limits the bytes of the blocks.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> MirrorReceiverOptions {
        self.limit = bytes;
        self
    }

    /// Sets the number of processes that may read the copies at the same time.
    #[must_use]
    pub fn readers(mut self, readers: u32) -> MirrorReceiverOptions {
        self.readers = readers;
        self
    }

    /// Limits the number of connections.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> MirrorReceiverOptions {
        self.connections = connections;
        self
    }

    /// Sets the time for a first record, and the longest time for a frame.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> MirrorReceiverOptions {
        self.timeout = limit;
        self
    }

    /// Sets the name of the stream.
    #[must_use]
    pub fn stream(mut self, name: impl Into<String>) -> MirrorReceiverOptions {
        self.stream = name.into();
        self
    }

    /// Sets the device for RDMA. Each segment is registered once with a device, so senders and
    /// receivers of a process should share one.
    #[cfg(feature = "rdma")]
    #[must_use]
    pub fn rdma(mut self, device: hostbuf_rdma::ReadDevice) -> MirrorReceiverOptions {
        self.rdma = Some(device);
        self
    }

    /// Returns the largest length of a frame in bytes.
    pub(super) fn most(&self) -> u64 {
        self.limit / 2
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`MirrorError::Invalid`].
    pub(super) fn check(&self) -> Result<(), MirrorError> {
        let invalid = |what: String| Err(MirrorError::Invalid { what });
        if self.blocks < 2 {
            return invalid(format!("invalid number of blocks {}: expected at least 2", self.blocks));
        }
        let (retain, most) = (self.retain.unwrap_or(1), self.blocks - 1);
        if !(1..=most).contains(&retain) {
            return invalid(format!("invalid number of retained blocks {retain}: expected 1 to {most}"));
        }
        if self.block_bytes == 0 {
            return invalid("invalid block size 0: expected at least 1 byte".into());
        }
        if self.block_bytes > self.most() {
            return invalid(format!(
                "invalid limit of {} bytes: expected at least two blocks of {} bytes",
                self.limit, self.block_bytes
            ));
        }
        if self.connections == 0 {
            return invalid("a receiver has at least one connection".into());
        }
        check_time("timeout", self.timeout)?;
        Ok(())
    }
}

impl Default for MirrorReceiverOptions {
    fn default() -> MirrorReceiverOptions {
        MirrorReceiverOptions::new()
    }
}
