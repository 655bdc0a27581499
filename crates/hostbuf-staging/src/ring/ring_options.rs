//! The options of a ring.

use std::fmt;
use std::thread::available_parallelism;

use super::host_memory::ALIGNMENT;
use crate::slot_word::MAX_PIECES;

/// The options of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingOptions {
    /// The number of slots.
    pub slots: usize,
    /// The length of a slot in bytes. One copy of the device
    /// moves at most this many bytes.
    pub slot_bytes: usize,
    /// The length of a piece in bytes. One read or write of a thread
    /// moves at most this many bytes.
    pub piece_bytes: usize,
    /// The number of threads.
    pub workers: usize,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        let workers = available_parallelism().map_or(1, |cores| cores.get().min(16));
        RingOptions {
            slots: RingOptions::SLOTS,
            slot_bytes: RingOptions::SLOT_BYTES,
            piece_bytes: RingOptions::PIECE_BYTES,
            workers,
        }
    }
}

impl RingOptions {
    /// The default of [`slots`](RingOptions::slots): 6. With 16 threads and pieces of 1 MiB, two
    /// slots are being filled, and four are full or being copied. With four slots the threads wait
    /// for a free one now and then; more than six are not faster, and take more of the caches.
    pub const SLOTS: usize = 6;
    /// The default of [`slot_bytes`](RingOptions::slot_bytes): 8 MiB, at which the fixed cost of a
    /// copy is about 2 % on PCIe 5.
    pub const SLOT_BYTES: usize = 8 << 20;
    /// The default of [`piece_bytes`](RingOptions::piece_bytes): 1 MiB, which stays in the cache of
    /// a core.
    pub const PIECE_BYTES: usize = 1 << 20;
    /// The largest number of slots.
    pub const MAX_SLOTS: usize = 1024;
    /// The largest number of threads.
    pub const MAX_WORKERS: usize = 1024;

    /// Makes the default options: 6 slots of 8 MiB, pieces of 1 MiB, and a thread for each core, at
    /// most 16.
    #[must_use]
    pub fn new() -> RingOptions {
        RingOptions::default()
    }

    /// Sets the number of slots.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> RingOptions {
        self.slots = slots;
        self
    }

    /// Sets the length of a slot in bytes.
    #[must_use]
    pub fn slot_bytes(mut self, bytes: usize) -> RingOptions {
        self.slot_bytes = bytes;
        self
    }

    /// Sets the length of a piece in bytes.
    #[must_use]
    pub fn piece_bytes(mut self, bytes: usize) -> RingOptions {
        self.piece_bytes = bytes;
        self
    }

    /// Sets the number of threads.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> RingOptions {
        self.workers = workers;
        self
    }

    /// Returns the number of bytes of all slots.
    ///
    /// # Errors
    /// [`InvalidRing`] for options that no ring can have.
    pub fn bytes(&self) -> Result<usize, InvalidRing> {
        let invalid = |what: String| Err(InvalidRing { what });
        let RingOptions { slots, slot_bytes, piece_bytes, workers } = *self;
        for (what, number, most) in
            [("slots", slots, RingOptions::MAX_SLOTS), ("workers", workers, RingOptions::MAX_WORKERS)]
        {
            if !(1..=most).contains(&number) {
                return invalid(format!("invalid number of {what} {number}: expected 1 to {most}"));
            }
        }
        for (what, bytes) in [("slot", slot_bytes), ("piece", piece_bytes)] {
            if bytes == 0 || !bytes.is_multiple_of(ALIGNMENT) {
                return invalid(format!(
                    "invalid {what} size {bytes}: expected a multiple of {ALIGNMENT} bytes"
                ));
            }
        }
        let pieces = slot_bytes.div_ceil(piece_bytes);
        if pieces > MAX_PIECES as usize {
            return invalid(format!(
                "invalid piece size {piece_bytes}: a slot of {slot_bytes} bytes has at most {MAX_PIECES} pieces"
            ));
        }
        let bytes = slots.checked_mul(slot_bytes).filter(|&bytes| isize::try_from(bytes).is_ok());
        let too_large = || InvalidRing { what: format!("{slots} slots of {slot_bytes} bytes are too large") };
        bytes.ok_or_else(too_large)
    }
}

/// Options that no ring can have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidRing {
    /// The option, its value, and the expected values.
    pub what: String,
}

impl fmt::Display for InvalidRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for InvalidRing {}
