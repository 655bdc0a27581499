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
    ///
    /// # Errors
    /// The reason why the device has none.
    pub(super) fn prepare(&self) -> Result<Option<FrameOffers>, String> {
        let Some(memory) = &self.0 else { return Ok(None) };
        let connection = memory.device.prepare().map_err(|error| error.to_string())?;
        Ok(Some(FrameOffers { connection, offered: OfferedFrames::new(), memory: memory.clone() }))
    }
}

impl FrameOffers {
    /// Returns the address of this end.
    pub(super) fn endpoint(&self) -> ReadEndpoint {
        self.connection.address().to_bytes()
    }

    /// Connects this end to that of the receiver.
    ///
    /// # Errors
    /// The reason why the receiver cannot read.
    pub(super) fn connect(&self, other: &ReadEndpoint) -> Result<(), String> {
        let other = ReadAddress::from_bytes(other)
            .ok_or("the receiver offers no RDMA: it uses no device, or its device has refused")?;
        self.connection.connect(other).map_err(|error| error.to_string())
    }

    /// Lets the receiver read a frame, and returns the place of its bytes and whether they are a
    /// copy. An empty frame has no place in memory.
    ///
    /// # Errors
    /// The reason why the device registers neither the frame nor a copy.
    pub(super) fn offer(&mut self, frame: &QueuedFrame) -> Result<(FrameSource, bool), String> {
        if frame.block.len() == 0 {
            return Ok((FrameSource::Stream, false));
        }
        let (source, copy) = self.memory.expose(&frame.block)?;
        let is_copy = copy.is_some();
        let hold = OfferedMemoryHold { _block: frame.block.clone(), _copy: copy };
        self.offered.push(frame.number, hold);
        Ok((source, is_copy))
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
    ///
    /// # Errors
    /// The reason why the device registers neither of them.
    fn expose(&self, block: &BlockRef) -> Result<(FrameSource, Option<Pinned<Verbs>>), String> {
        if self.retry.is_due(Instant::now()) {
            match block.register(self.device.registrar(), Access::REMOTE_READ) {
                Ok(key) => {
                    self.retry.accept();
                    let address = block.as_ptr() as u64;
                    return Ok((FrameSource::Memory { address, remote_key: key.rkey }, None));
                }
                Err(error) => {
                    tracing::info!(%error, "a mirror copies a frame for RDMA");
                    self.retry.refuse(Instant::now());
                }
            }
        }
        let mut copy = self.copies.allocate(block.len()).map_err(|error| error.to_string())?;
        copy.copy_from_slice(block.as_slice());
        let address = copy.as_ptr() as u64;
        Ok((FrameSource::Memory { address, remote_key: copy.key().rkey }, Some(copy)))
    }
}
