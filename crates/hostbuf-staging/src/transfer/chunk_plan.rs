//! The division of a transfer into the contents of slots, and of those into pieces.

use std::ops::Range;

use super::planned_piece::{PiecePart, PlanSizes, PlannedPiece};

/// The division of `length` bytes at `offset` of a file into chunks, one for each turn of a slot.
///
/// The chunks begin at multiples of the alignment in the file, so a chunk lies in its slot as it
/// lies in the file, and the first one has unused bytes before it:
///
/// ```text
/// file    |....xxxxxxxx|xxxxxxxxxxxx|xxxx        x: bytes of the transfer
/// slots    slot 0       slot 1       slot 2
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlan {
    offset: u64,
    length: u64,
    alignment: u64,
    slot_bytes: u64,
    piece_bytes: u64,
}

/// The part of a transfer that one turn of a slot moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The offset in the file of the first byte of the slot.
    pub(crate) file_offset: u64,
    /// The bytes of the slot that belong to the transfer.
    pub(crate) used: Range<usize>,
    /// The offset in the transfer of the first of these bytes.
    pub(crate) transfer_offset: u64,
}

impl ChunkPlan {
    /// Plans a transfer.
    pub(crate) fn new((offset, length): (u64, u64), sizes: PlanSizes) -> ChunkPlan {
        let (slot_bytes, piece_bytes) = (sizes.slot_bytes as u64, sizes.piece_bytes as u64);
        ChunkPlan { offset, length, alignment: sizes.alignment, slot_bytes, piece_bytes }
    }

    fn first(&self) -> u64 {
        self.offset / self.alignment * self.alignment
    }

    /// Returns the number of chunks, 0 for an empty transfer.
    pub(crate) fn chunks(&self) -> u64 {
        if self.length == 0 {
            return 0;
        }
        (self.offset + self.length - self.first()).div_ceil(self.slot_bytes)
    }

    /// Returns chunk `number`.
    pub(crate) fn chunk(&self, number: u64) -> Chunk {
        let file_offset = self.first() + number * self.slot_bytes;
        let start = self.offset.max(file_offset);
        let end = (self.offset + self.length).min(file_offset + self.slot_bytes);
        let used = (start - file_offset) as usize..(end - file_offset) as usize;
        Chunk { file_offset, used, transfer_offset: start - self.offset }
    }

    /// Returns the number of pieces of a chunk.
    pub(crate) fn pieces(&self, chunk: &Chunk) -> u32 {
        // A slot has at most as many pieces as its state can count.
        (chunk.used.end as u64).div_ceil(self.piece_bytes) as u32
    }

    /// Returns piece `number` of a chunk.
    pub(crate) fn piece(&self, chunk: &Chunk, number: u32) -> PlannedPiece {
        let start = u64::from(number) * self.piece_bytes;
        let needed = (start + self.piece_bytes).min(chunk.used.end as u64);
        let end = needed.next_multiple_of(self.alignment);
        let (memory, needed) = (start as usize..end as usize, (needed - start) as usize);
        PlannedPiece { memory, file_offset: chunk.file_offset + start, needed }
    }

    /// Returns the part of a piece that belongs to the transfer. `target` is the device's address
    /// of its first byte. `None` if the piece lies before the transfer.
    pub(crate) fn part(&self, chunk: &Chunk, number: u32, target: u64) -> Option<PiecePart> {
        let piece = self.piece(chunk, number);
        let start = piece.memory.start.max(chunk.used.start);
        let end = piece.memory.start + piece.needed;
        (start < end).then(|| PiecePart {
            memory: start..end,
            file_offset: chunk.file_offset + start as u64,
            address: target + chunk.transfer_offset + (start - chunk.used.start) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn planned(range: (u64, u64), alignment: u64, slot_bytes: usize, piece_bytes: usize) -> ChunkPlan {
        ChunkPlan::new(range, PlanSizes { alignment, slot_bytes, piece_bytes })
    }

    #[test]
    fn an_aligned_transfer_fills_its_slots() {
        let plan = planned((8192, 20_000), 4096, 16384, 4096);
        assert_eq!(plan.chunks(), 2);
        assert_eq!(plan.chunk(0), Chunk { file_offset: 8192, used: 0..16384, transfer_offset: 0 });
        let last = plan.chunk(1);
        assert_eq!(last, Chunk { file_offset: 24576, used: 0..3616, transfer_offset: 16384 });
        assert_eq!((plan.pieces(&plan.chunk(0)), plan.pieces(&last)), (4, 1));
        assert_eq!(plan.piece(&last, 0), PlannedPiece { memory: 0..4096, file_offset: 24576, needed: 3616 });
        assert_eq!(planned((5, 0), 4096, 16384, 4096).chunks(), 0);
    }

    proptest! {
        #[test]
        fn each_byte_is_in_one_piece(
            offset in 0u64..100_000,
            length in 0u64..200_000,
            alignment in prop::sample::select(vec![1u64, 512, 4096]),
            pieces in 1usize..5,
            slots in 1usize..4,
        ) {
            let piece = 4096 * pieces;
            let plan = planned((offset, length), alignment, piece * slots, piece);
            let (mut next, mut moved) = (offset, 0);
            for number in 0..plan.chunks() {
                let chunk = plan.chunk(number);
                prop_assert_eq!(chunk.file_offset % alignment, 0);
                prop_assert_eq!(chunk.file_offset + chunk.used.start as u64, next);
                prop_assert_eq!(chunk.transfer_offset, next - offset);
                prop_assert!(chunk.used.end <= piece * slots && !chunk.used.is_empty());
                let (mut covered, mut of_parts) = (0, 0);
                for piece in 0..plan.pieces(&chunk) {
                    let PlannedPiece { memory, file_offset, needed } = plan.piece(&chunk, piece);
                    prop_assert_eq!((memory.start, file_offset), (covered, chunk.file_offset + covered as u64));
                    prop_assert!(needed > 0 && needed <= memory.len());
                    prop_assert_eq!(memory.len() as u64 % alignment, 0);
                    covered = memory.start + needed;
                    if let Some(part) = plan.part(&chunk, piece, 5000) {
                        prop_assert_eq!(part.address - 5000, part.file_offset - offset);
                        of_parts += part.bytes();
                    }
                }
                prop_assert_eq!((covered, of_parts), (chunk.used.end, chunk.used.len()));
                next += chunk.used.len() as u64;
                moved += chunk.used.len() as u64;
            }
            prop_assert_eq!(moved, length);
        }
    }
}
