//! The division of a transfer into the contents of slots, and of those into pieces.

use super::chunk_plan::ChunkPlan;
use super::gather_plan::GatherPlan;
use super::planned_piece::{PiecePart, PlannedPiece};
use crate::device::DeviceTarget;

/// The division of a transfer into chunks, one for each turn of a slot. It keeps the memory of the
/// device.
#[derive(Debug)]
pub(crate) enum TransferPlan {
    /// One range of a file, and one target.
    Contiguous {
        /// The division.
        plan: ChunkPlan,
        /// The target, which is as long as the range.
        target: DeviceTarget,
    },
    /// Many ranges of a file, each with a target.
    Gathered(GatherPlan),
}

impl TransferPlan {
    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            TransferPlan::Contiguous { target, .. } => target.bytes(),
            TransferPlan::Gathered(plan) => plan.bytes(),
        }
    }

    /// Returns the number of chunks, 0 for an empty transfer.
    pub(crate) fn chunks(&self) -> u64 {
        match self {
            TransferPlan::Contiguous { plan, .. } => plan.chunks(),
            TransferPlan::Gathered(plan) => plan.chunks(),
        }
    }

    /// Returns the number of bytes before a chunk, in the order of the chunks.
    pub(crate) fn bytes_before(&self, chunk: u64) -> u64 {
        match self {
            TransferPlan::Contiguous { plan, .. } => plan.chunk(chunk).transfer_offset,
            TransferPlan::Gathered(plan) => plan.bytes_before(chunk),
        }
    }

    /// Returns the number of pieces of a chunk, at least one.
    pub(crate) fn pieces(&self, chunk: u64) -> u32 {
        match self {
            TransferPlan::Contiguous { plan, .. } => plan.pieces(&plan.chunk(chunk)),
            TransferPlan::Gathered(plan) => plan.pieces(chunk),
        }
    }

    /// Returns piece `number` of a chunk.
    pub(crate) fn piece(&self, chunk: u64, number: u32) -> PlannedPiece {
        match self {
            TransferPlan::Contiguous { plan, .. } => plan.piece(&plan.chunk(chunk), number),
            TransferPlan::Gathered(plan) => plan.piece(chunk, number),
        }
    }

    /// Returns part `index` of piece `number` of a chunk.
    pub(crate) fn part(&self, chunk: u64, number: u32, index: usize) -> Option<PiecePart> {
        match self {
            TransferPlan::Contiguous { plan, target } if index == 0 => {
                plan.part(&plan.chunk(chunk), number, target.address())
            }
            TransferPlan::Contiguous { .. } => None,
            TransferPlan::Gathered(plan) => plan.part(chunk, number, index),
        }
    }

    /// Returns the first part of a chunk.
    pub(crate) fn first_part(&self, chunk: u64) -> Option<PiecePart> {
        self.part(chunk, 0, 0)
    }

    /// Returns the parts of a chunk, each as long as one copy of a device can be: parts that are
    /// adjacent in the slot and on the device are one.
    pub(crate) fn copies(&self, chunk: u64) -> PlannedCopies<'_> {
        PlannedCopies { plan: self, chunk, pieces: self.pieces(chunk), piece: 0, index: 0, pending: None }
    }
}

/// The copies of a chunk.
pub(crate) struct PlannedCopies<'p> {
    plan: &'p TransferPlan,
    chunk: u64,
    pieces: u32,
    piece: u32,
    index: usize,
    /// The copy that may become longer.
    pending: Option<PiecePart>,
}

impl PlannedCopies<'_> {
    fn next_part(&mut self) -> Option<PiecePart> {
        while self.piece < self.pieces {
            if let Some(part) = self.plan.part(self.chunk, self.piece, self.index) {
                self.index += 1;
                return Some(part);
            }
            (self.piece, self.index) = (self.piece + 1, 0);
        }
        None
    }
}

impl Iterator for PlannedCopies<'_> {
    type Item = PiecePart;

    fn next(&mut self) -> Option<PiecePart> {
        while let Some(part) = self.next_part() {
            match &mut self.pending {
                Some(pending) if pending.continues_with(&part) => pending.memory.end = part.memory.end,
                pending => {
                    if let Some(copy) = pending.replace(part) {
                        return Some(copy);
                    }
                }
            }
        }
        self.pending.take()
    }
}
