//! The frames that a receiver reads by RDMA.

use std::sync::Arc;
use std::time::Instant;

use hostbuf_pool::BlockRef;
use hostbuf_rdma::{ReadAddress, ReadConnection, ReadDevice};
use hostbuf_register::{Access, Pinned, PinnedAlloc, Verbs};

use super::offered_frames::OfferedFrames;
use super::options::MirrorSenderOptions;
use super::queue::QueuedFrame;
use crate::registration_retry::RegistrationRetry;
use crate::wire::{FrameSource, ReadEndpoint};

/// The memory of a sender that receivers read, through all of its connections.
#[derive(Debug)]
pub(super) struct OfferedMemory(Option<Arc<SenderMemory>>);

#[derive(Debug)]
struct SenderMemory {
    device: ReadDevice,
    /// Memory for copies of frames whose own memory the device does not register.
    copies: PinnedAlloc<Verbs>,
    /// The times at which the device is asked again that has refused the memory of a frame.
    retry: RegistrationRetry,
}

/// The frames that a receiver reads by RDMA: the sender's end of the connection, and the memory
/// that the receiver has not read yet.
#[derive(Debug)]
pub(super) struct FrameOffers {
    // Dropped before the frames, whose memory the receiver can read until then.
    connection: ReadConnection,
    offered: OfferedFrames<OfferedMemoryHold>,
    memory: Arc<SenderMemory>,
}

/// The memory of a frame that the receiver may read.
#[derive(Debug)]
struct OfferedMemoryHold {
    _block: Arc<BlockRef>,
    _copy: Option<Pinned<Verbs>>,
}

impl OfferedMemory {
    /// Makes the memory for the device of the options, if they have one.
    pub(super) fn new(options: &MirrorSenderOptions) -> OfferedMemory {
        OfferedMemory(options.rdma.clone().map(|device| {
            let copies = PinnedAlloc::new(device.registrar().clone(), Access::REMOTE_READ, usize::MAX);
            Arc::new(SenderMemory { device, copies, retry: RegistrationRetry::default() })
        }))
    }

    /// Makes one end of a connection, if there is a device.
    pub(super) fn prepare(&self) -> Option<FrameOffers> {
        let memory = self.0.as_ref()?;
        match memory.device.prepare() {
            Ok(connection) => {
                Some(FrameOffers { connection, offered: OfferedFrames::new(), memory: memory.clone() })
            }
            Err(error) => {
                tracing::warn!(%error, "a mirror sends by TCP alone");
                None
            }
        }
    }
}

impl FrameOffers {
    /// Returns the address of this end.
    pub(super) fn endpoint(&self) -> ReadEndpoint {
        self.connection.address().to_bytes()
    }

    /// Connects this end to that of the receiver. Returns whether the receiver can read.
    pub(super) fn connect(&self, other: &ReadEndpoint) -> bool {
        let Some(other) = ReadAddress::from_bytes(other) else {
            tracing::info!("a mirror sends by TCP alone: the receiver does not use RDMA");
            return false;
        };
        let connected = self.connection.connect(other);
        if let Err(error) = &connected {
            tracing::warn!(%error, "a mirror sends by TCP alone");
        }
        connected.is_ok()
    }

    /// Lets the receiver read a frame, and returns the place of its bytes. It is the stream if the
    /// device registers neither the frame nor a copy.
    pub(super) fn offer(&mut self, frame: &QueuedFrame) -> (FrameSource, bool) {
        let Some((source, copy)) = self.memory.expose(&frame.block) else {
            return (FrameSource::Stream, false);
        };
        let is_copy = copy.is_some();
        let hold = OfferedMemoryHold { _block: frame.block.clone(), _copy: copy };
        self.offered.push(frame.number, hold);
        (source, is_copy)
    }

    /// Ends the offers up to frame `number`, which the receiver has answered.
    pub(super) fn end(&mut self, number: u64) {
        self.offered.end(number);
    }

    /// Ends the offer of frame `number`, of which nothing was sent.
    pub(super) fn withdraw(&mut self, number: u64) {
        self.offered.withdraw(number);
    }

    /// Returns whether the receiver has read nothing of what it was offered.
    pub(super) fn has_failed(&self) -> bool {
        self.offered.has_failed()
    }
}

impl SenderMemory {
    /// Returns the place of the bytes of a block, or of a copy, and the copy.
    fn expose(&self, block: &BlockRef) -> Option<(FrameSource, Option<Pinned<Verbs>>)> {
        if block.len() == 0 {
            return None;
        }
        if self.retry.is_due(Instant::now()) {
            match block.register(self.device.registrar(), Access::REMOTE_READ) {
                Ok(key) => {
                    self.retry.accept();
                    let address = block.as_ptr() as u64;
                    return Some((FrameSource::Memory { address, remote_key: key.rkey }, None));
                }
                Err(error) => {
                    tracing::info!(%error, "a mirror copies a frame for RDMA");
                    self.retry.refuse(Instant::now());
                }
            }
        }
        match self.copies.allocate(block.len()) {
            Ok(mut copy) => {
                copy.copy_from_slice(block.as_slice());
                let address = copy.as_ptr() as u64;
                Some((FrameSource::Memory { address, remote_key: copy.key().rkey }, Some(copy)))
            }
            Err(error) => {
                tracing::warn!(%error, "a mirror sends a frame by TCP");
                None
            }
        }
    }
}
