//! The memory of channels: for each channel a ring of slots for incoming messages, into which the
//! peer writes, and one for outgoing messages.
//!
//! ```text
//!   incoming       | header, bytes | header, bytes | ...   written by the peer, slot by slot
//!   outgoing       | header, bytes | header, bytes | ...   filled here, written to the peer
//!   acknowledged   number of messages that the peer has received: written by the peer
//!   acknowledging  number of messages that this side has received: written to the peer
//!   status         whether this side has failed, or closed the channel: read by the peer
//!   peer status    result of reading the peer's status
//! ```

#![allow(unsafe_code, reason = "slots are accessed by raw pointers while the peer writes them")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::verbs::work_request::{LocalKey, LocalSegment, RemoteKey, RemoteSegment};
use hostbuf::error::Result;
use hostbuf_register::{Access, Pinned, PinnedAlloc, Verbs};

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct MessageHeader {
    /// The number of the message in its channel, from 1.
    pub(crate) number: u64,
    pub(crate) length: u64,
    /// The address of the bytes at the sender, or 0 if they follow the header.
    pub(crate) address: u64,
    /// The sender's remote key, if the bytes are there.
    pub(crate) rkey: u64,
}

/// The reason why one end of a channel can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum ChannelStatus {
    /// Messages or notifications are lost.
    Failed = 1,
    /// The channel was dropped.
    Closed = 2,
}

/// The index of a channel among those of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelIndex(pub(crate) usize);

/// The number of bytes from the start of the rings of a process to a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RingOffset(usize);

/// The rings of all channels of a peer.
#[derive(Clone, Copy)]
pub(crate) struct PeerRings(pub(crate) RemoteSegment);

impl PeerRings {
    pub(crate) fn at(self, offset: RingOffset) -> RemoteSegment {
        self.0.offset(offset.0)
    }
}

/// A word behind the slots of a channel. Each has a cache line of its own.
#[derive(Clone, Copy)]
enum RingWord {
    Acknowledged,
    Acknowledging,
    Status,
    PeerStatus,
}

/// The number of words behind the slots.
const WORDS: usize = 4;
const LINE: usize = 64;

/// The layout of rings, which is equal in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingLayout {
    /// The maximum number of bytes of an eager message.
    pub(crate) eager: usize,
    /// The number of slots in each direction.
    pub(crate) slots: usize,
}

/// The rings of all channels of a process.
pub(crate) struct Rings {
    layout: RingLayout,
    memory: Pinned<Verbs>,
    base: NonNull<u8>,
}

// SAFETY: each part of a ring is accessed by the holder of the channel's lock for that direction,
// and by the device.
unsafe impl Send for Rings {}
// SAFETY: as above.
unsafe impl Sync for Rings {}

impl RingLayout {
    fn slot_bytes(&self) -> usize {
        (size_of::<MessageHeader>() + self.eager).next_multiple_of(LINE)
    }

    fn channel_bytes(&self) -> usize {
        2 * self.slots * self.slot_bytes() + WORDS * LINE
    }

    /// Returns the offset of the slot in which message `number` of a channel arrives.
    pub(crate) fn incoming(&self, channel: ChannelIndex, number: u64) -> RingOffset {
        RingOffset(channel.0 * self.channel_bytes() + (number as usize - 1) % self.slots * self.slot_bytes())
    }

    fn outgoing(&self, channel: ChannelIndex, number: u64) -> RingOffset {
        RingOffset(self.incoming(channel, number).0 + self.slots * self.slot_bytes())
    }

    pub(crate) fn acknowledged(&self, channel: ChannelIndex) -> RingOffset {
        self.word(channel, RingWord::Acknowledged)
    }

    fn acknowledging(&self, channel: ChannelIndex) -> RingOffset {
        self.word(channel, RingWord::Acknowledging)
    }

    pub(crate) fn status(&self, channel: ChannelIndex) -> RingOffset {
        self.word(channel, RingWord::Status)
    }

    fn peer_status(&self, channel: ChannelIndex) -> RingOffset {
        self.word(channel, RingWord::PeerStatus)
    }

    fn word(&self, channel: ChannelIndex, word: RingWord) -> RingOffset {
        RingOffset((channel.0 + 1) * self.channel_bytes() - (WORDS - word as usize) * LINE)
    }
}

impl Rings {
    /// Allocates and registers the rings of `channels` channels.
    ///
    /// # Errors
    /// The errors of [`PinnedAlloc::allocate`].
    pub(crate) fn new(verbs: &Arc<Verbs>, layout: RingLayout, channels: usize) -> Result<Rings> {
        let bytes = layout.channel_bytes() * channels.max(1);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let pool = PinnedAlloc::new(verbs.clone(), access, bytes.next_power_of_two());
        let mut memory = pool.allocate(bytes)?;
        memory.fill(0);
        let base = NonNull::new(memory.as_mut_ptr()).expect("memory");
        Ok(Rings { layout, memory, base })
    }

    pub(crate) fn layout(&self) -> RingLayout {
        self.layout
    }

    /// Returns the address and the key of the rings for peers.
    pub(crate) fn remote(&self) -> RemoteSegment {
        RemoteSegment { address: self.base.as_ptr() as u64, rkey: RemoteKey(self.memory.handle().rkey()) }
    }

    /// Returns the number of bytes of all rings.
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    fn local(&self, offset: RingOffset, length: usize) -> LocalSegment {
        let address = self.base.as_ptr() as usize + offset.0;
        let lkey = LocalKey(self.memory.handle().lkey());
        LocalSegment { address, length: length as u32, lkey }
    }

    fn word(&self, offset: RingOffset) -> &AtomicU64 {
        // SAFETY: a 64-byte aligned word inside the memory, which is accessed only in this way and
        // by the device.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset.0).cast()) }
    }

    /// Returns the number of this side's messages that the peer has received. It is valid after an
    /// acknowledgement has arrived.
    pub(crate) fn acknowledged(&self, channel: ChannelIndex) -> u64 {
        self.word(self.layout.acknowledged(channel)).load(Ordering::Acquire)
    }

    /// Sets the number of messages that this side has received, and returns the word, which is to
    /// be written to the peer's `acknowledged`.
    pub(crate) fn acknowledge(&self, channel: ChannelIndex, count: u64) -> LocalSegment {
        let offset = self.layout.acknowledging(channel);
        self.word(offset).store(count, Ordering::Release);
        self.local(offset, size_of::<u64>())
    }

    /// Sets the status that the peer reads.
    pub(crate) fn set_status(&self, channel: ChannelIndex, status: ChannelStatus) {
        self.word(self.layout.status(channel)).store(status as u64, Ordering::Release);
    }

    /// Returns the word into which the peer's status is to be read.
    pub(crate) fn peer_status_word(&self, channel: ChannelIndex) -> LocalSegment {
        self.local(self.layout.peer_status(channel), size_of::<u64>())
    }

    /// Returns the peer's status as it was read last, or `None` if the channel is open there.
    pub(crate) fn peer_status(&self, channel: ChannelIndex) -> Option<ChannelStatus> {
        match self.word(self.layout.peer_status(channel)).load(Ordering::Acquire) {
            0 => None,
            1 => Some(ChannelStatus::Failed),
            _ => Some(ChannelStatus::Closed),
        }
    }

    /// Fills a slot with a header and the bytes of an eager message, and returns the segment, which
    /// is to be written to the peer.
    ///
    /// # Safety
    /// Only the caller sends on the channel, and the peer has received the message that used the
    /// slot before.
    pub(crate) unsafe fn fill(
        &self,
        channel: ChannelIndex,
        header: MessageHeader,
        bytes: &[u8],
    ) -> LocalSegment {
        assert!(bytes.len() <= self.layout.eager);
        let offset = self.layout.outgoing(channel, header.number);
        // SAFETY: inside the memory; by the contract of this function nothing else accesses the
        // slot.
        unsafe {
            let slot = self.base.as_ptr().add(offset.0);
            slot.cast::<MessageHeader>().write(header);
            slot.add(size_of::<MessageHeader>()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.local(offset, size_of::<MessageHeader>() + bytes.len())
    }

    /// Returns the header of message `number`.
    ///
    /// # Safety
    /// The notification of the message has arrived, and the message was not acknowledged.
    pub(crate) unsafe fn header(&self, channel: ChannelIndex, number: u64) -> MessageHeader {
        let offset = self.layout.incoming(channel, number);
        // SAFETY: inside the memory; by the contract of this function it is completely written.
        unsafe { self.base.as_ptr().add(offset.0).cast::<MessageHeader>().read_volatile() }
    }

    /// Copies the bytes of the eager message `number`.
    ///
    /// # Panics
    /// If `into` is longer than an eager message.
    ///
    /// # Safety
    /// The contract of [`header`](Rings::header).
    pub(crate) unsafe fn copy(&self, channel: ChannelIndex, number: u64, into: &mut [u8]) {
        assert!(into.len() <= self.layout.eager);
        let offset = self.layout.incoming(channel, number).0 + size_of::<MessageHeader>();
        // SAFETY: as above.
        unsafe { self.base.as_ptr().add(offset).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_words_do_not_overlap() {
        for (eager, slots) in [(0, 1), (1, 2), (8192, 16), (31, 3)] {
            let layout = RingLayout { eager, slots };
            let mut parts = Vec::new();
            for channel in (0..3).map(ChannelIndex) {
                for number in 1..=slots as u64 {
                    let length = size_of::<MessageHeader>() + eager;
                    parts.push((layout.incoming(channel, number), length));
                    parts.push((layout.outgoing(channel, number), length));
                }
                assert_eq!(layout.incoming(channel, 1), layout.incoming(channel, 1 + slots as u64));
                parts.push((layout.acknowledged(channel), 8));
                parts.push((layout.acknowledging(channel), 8));
                parts.push((layout.status(channel), 8));
                parts.push((layout.peer_status(channel), 8));
            }
            parts.sort_unstable();
            assert!(parts.windows(2).all(|two| two[0].0.0 + two[0].1 <= two[1].0.0), "{layout:?}");
            assert!(parts.last().unwrap().0.0 + 8 <= 3 * layout.channel_bytes());
            assert!(parts.iter().all(|(offset, _)| offset.0 % 8 == 0));
        }
    }
}
