//! The memory behind channels: for each, places that the other side writes messages into, and what this side sends from.
//!
//! ```text
//!   incoming   | head, bytes | head, bytes | ...    written by the other side, one place after the other, round and round
//!   outgoing   | head, bytes | head, bytes | ...    filled here, and written from here into the other side's incoming
//!   taken      how many of this side's messages the other side has taken: written by it
//!   taking     how many of the other side's this one has taken: written from here into its taken
//!   over       whether this side has lost something, or closed the channel: read from here by the other side
//!   theirs     what was read there
//! ```

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::register::{Access, Pinned, PinnedAlloc, Verbs};

/// What stands in front of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Head {
    /// Which message of the channel it is, from 1.
    pub(crate) number: u64,
    pub(crate) length: u64,
    /// Where the bytes lie at the sender's, for who reads them there; 0: behind the head.
    pub(crate) at: u64,
    pub(crate) key: u64,
}

/// Why a channel is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Over {
    /// Messages, or news of them, are lost.
    Lost = 1,
    /// Nobody has that end any more.
    Closed = 2,
}

/// Behind the places.
const WORDS: usize = 4;

/// Where things lie, in every process alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of a message that is sent at once, at most.
    pub(crate) eager: usize,
    /// Places in each direction.
    pub(crate) places: usize,
}

/// The boxes of all channels of a process.
pub(crate) struct Boxes {
    layout: Layout,
    memory: Pinned<Verbs>,
    base: NonNull<u8>,
}

// SAFETY: of each box the parts are used by whoever holds the channel's lock for that direction, and by the device.
unsafe impl Send for Boxes {}
// SAFETY: as above.
unsafe impl Sync for Boxes {}

impl Layout {
    fn place(&self) -> usize {
        (size_of::<Head>() + self.eager).next_multiple_of(64)
    }

    fn bytes(&self) -> usize {
        // The words have lines of their own.
        2 * self.places * self.place() + WORDS * 64
    }

    /// Where message `number` of a channel comes in, from the beginning of the boxes.
    pub(crate) fn incoming(&self, channel: usize, number: u64) -> usize {
        channel * self.bytes() + (number as usize - 1) % self.places * self.place()
    }

    fn outgoing(&self, channel: usize, number: u64) -> usize {
        self.incoming(channel, number) + self.places * self.place()
    }

    pub(crate) fn taken(&self, channel: usize) -> usize {
        self.word(channel, 0)
    }

    fn taking(&self, channel: usize) -> usize {
        self.word(channel, 1)
    }

    pub(crate) fn over(&self, channel: usize) -> usize {
        self.word(channel, 2)
    }

    fn theirs(&self, channel: usize) -> usize {
        self.word(channel, 3)
    }

    fn word(&self, channel: usize, which: usize) -> usize {
        (channel + 1) * self.bytes() - (WORDS - which) * 64
    }
}

impl Boxes {
    /// # Errors
    /// As [`PinnedAlloc::allocate`].
    pub(crate) fn new(verbs: &Arc<Verbs>, layout: Layout, channels: usize) -> Result<Boxes> {
        let bytes = layout.bytes() * channels.max(1);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        // No more than that is pinned.
        let pool = PinnedAlloc::new(verbs.clone(), access, bytes.next_power_of_two());
        let mut memory = pool.allocate(bytes)?;
        memory.fill(0);
        let base = NonNull::new(memory.as_mut_ptr()).expect("memory");
        Ok(Boxes { layout, memory, base })
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Where they begin, and the key by which others write there.
    pub(crate) fn address(&self) -> (usize, u32) {
        (self.base.as_ptr() as usize, self.memory.handle().rkey())
    }

    fn local(&self, offset: usize, length: usize) -> (usize, u32, u32) {
        (self.base.as_ptr() as usize + offset, length as u32, self.memory.handle().lkey())
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: a word inside the memory, 64-byte aligned; it is only ever used so here, and by the device.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// How many messages of this side the other one has taken. To be asked when it has told that.
    pub(crate) fn taken(&self, channel: usize) -> u64 {
        self.word(self.layout.taken(channel)).load(Ordering::Acquire)
    }

    /// Notes how many this side has taken: what is to be written into the other one's `taken`.
    pub(crate) fn take(&self, channel: usize, count: u64) -> (usize, u32, u32) {
        let offset = self.layout.taking(channel);
        self.word(offset).store(count, Ordering::Release);
        self.local(offset, size_of::<u64>())
    }

    /// From now on the other side reads this when it asks.
    pub(crate) fn say_over(&self, channel: usize, why: Over) {
        self.word(self.layout.over(channel)).store(why as u64, Ordering::Release);
    }

    /// Where to the other side's `over` is to be read.
    pub(crate) fn theirs(&self, channel: usize) -> (usize, u32, u32) {
        self.local(self.layout.theirs(channel), size_of::<u64>())
    }

    /// What has been read there.
    pub(crate) fn said_over(&self, channel: usize) -> Option<Over> {
        match self.word(self.layout.theirs(channel)).load(Ordering::Acquire) {
            0 => None,
            1 => Some(Over::Lost),
            _ => Some(Over::Closed),
        }
    }

    /// Makes a message ready, with its bytes when they are to come along: what is to be written.
    ///
    /// # Safety
    /// The caller alone sends on the channel, and the message that had the place before has been taken.
    pub(crate) unsafe fn fill(&self, channel: usize, head: Head, bytes: &[u8]) -> (usize, u32, u32) {
        assert!(bytes.len() <= self.layout.eager);
        let offset = self.layout.outgoing(channel, head.number);
        // SAFETY: inside the memory, and nobody else's by this function's contract.
        unsafe {
            let place = self.base.as_ptr().add(offset);
            place.cast::<Head>().write(head);
            place.add(size_of::<Head>()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.local(offset, size_of::<Head>() + bytes.len())
    }

    /// The head of message `number`.
    ///
    /// # Safety
    /// The other side has told that it is there, and it has not been taken.
    pub(crate) unsafe fn head(&self, channel: usize, number: u64) -> Head {
        // SAFETY: inside the memory, and written completely, by this function's contract.
        unsafe {
            self.base.as_ptr().add(self.layout.incoming(channel, number)).cast::<Head>().read_volatile()
        }
    }

    /// Copies its bytes.
    ///
    /// # Panics
    /// When it is longer than what comes along.
    ///
    /// # Safety
    /// As [`head`](Boxes::head).
    pub(crate) unsafe fn copy(&self, channel: usize, number: u64, into: &mut [u8]) {
        assert!(into.len() <= self.layout.eager);
        let offset = self.layout.incoming(channel, number) + size_of::<Head>();
        // SAFETY: as above.
        unsafe { self.base.as_ptr().add(offset).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_places_overlap() {
        for (eager, places) in [(0, 1), (1, 2), (8192, 16), (31, 3)] {
            let layout = Layout { eager, places };
            let mut all = Vec::new();
            for channel in 0..3 {
                for number in 1..=places as u64 {
                    let length = size_of::<Head>() + eager;
                    all.push((layout.incoming(channel, number), length));
                    all.push((layout.outgoing(channel, number), length));
                }
                assert_eq!(layout.incoming(channel, 1), layout.incoming(channel, 1 + places as u64));
                all.push((layout.taken(channel), 8));
                all.push((layout.taking(channel), 8));
                all.push((layout.over(channel), 8));
                all.push((layout.theirs(channel), 8));
            }
            all.sort_unstable();
            assert!(all.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{layout:?}");
            assert!(all.last().unwrap().0 + 8 <= 3 * layout.bytes());
            assert!(all.iter().all(|(at, _)| at % 8 == 0));
        }
    }
}
