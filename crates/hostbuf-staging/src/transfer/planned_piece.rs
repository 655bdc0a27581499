//! Pieces: the parts of a slot that one read or write moves, and their sizes.

use std::ops::Range;

/// The sizes that a plan keeps to. All are multiples of the alignment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanSizes {
    pub(crate) alignment: u64,
    pub(crate) slot_bytes: usize,
    pub(crate) piece_bytes: usize,
}

/// A piece: bytes that lie in a slot as they lie in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedPiece {
    /// The bytes of the slot, a multiple of the alignment.
    pub(crate) memory: Range<usize>,
    /// The offset in the file of the first of them.
    pub(crate) file_offset: u64,
    /// The number of bytes that the file must have there.
    pub(crate) needed: usize,
}

/// A part of a piece that belongs to one range of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PiecePart {
    /// The bytes of the slot.
    pub(crate) memory: Range<usize>,
    /// The offset in the file of the first of them.
    pub(crate) file_offset: u64,
    /// The device's address of the first of them.
    pub(crate) address: u64,
}

impl PiecePart {
    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Returns whether `next` directly follows this part, in the slot and on the device.
    pub(crate) fn continues_with(&self, next: &PiecePart) -> bool {
        self.memory.end == next.memory.start && self.address + self.bytes() as u64 == next.address
    }
}
