//! The division of a transfer into the contents of slots, and of those into pieces.

use std::ops::Range;

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
    /// Plans a transfer. `slot_bytes` and `piece_bytes` are multiples of `alignment`.
    pub(crate) fn new(
        (offset, length): (u64, u64),
        alignment: u64,
        slot_bytes: usize,
        piece_bytes: usize,
    ) -> ChunkPlan {
        let (slot_bytes, piece_bytes) = (slot_bytes as u64, piece_bytes as u64);
        ChunkPlan { offset, length, alignment, slot_bytes, piece_bytes }
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

    /// Returns the bytes of the slot that piece `number` covers, rounded up to the alignment, and
    /// the number of those that the transfer needs.
    pub(crate) fn piece(&self, chunk: &Chunk, number: u32) -> (Range<usize>, usize) {
        let start = u64::from(number) * self.piece_bytes;
        let needed = (start + self.piece_bytes).min(chunk.used.end as u64);
        let end = needed.next_multiple_of(self.alignment);
        (start as usize..end as usize, (needed - start) as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_aligned_transfer_fills_its_slots() {
        let plan = ChunkPlan::new((8192, 20_000), 4096, 16384, 4096);
        assert_eq!(plan.chunks(), 2);
        assert_eq!(plan.chunk(0), Chunk { file_offset: 8192, used: 0..16384, transfer_offset: 0 });
        let last = plan.chunk(1);
        assert_eq!(last, Chunk { file_offset: 24576, used: 0..3616, transfer_offset: 16384 });
        assert_eq!((plan.pieces(&plan.chunk(0)), plan.pieces(&last)), (4, 1));
        assert_eq!(plan.piece(&last, 0), (0..4096, 3616));
        assert_eq!(ChunkPlan::new((5, 0), 4096, 16384, 4096).chunks(), 0);
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
            let plan = ChunkPlan::new((offset, length), alignment, piece * slots, piece);
            let (mut next, mut moved) = (offset, 0);
            for number in 0..plan.chunks() {
                let chunk = plan.chunk(number);
                prop_assert_eq!(chunk.file_offset % alignment, 0);
                prop_assert_eq!(chunk.file_offset + chunk.used.start as u64, next);
                prop_assert_eq!(chunk.transfer_offset, next - offset);
                prop_assert!(chunk.used.end <= piece * slots && !chunk.used.is_empty());
                let mut covered = 0;
                for piece in 0..plan.pieces(&chunk) {
                    let (bytes, needed) = plan.piece(&chunk, piece);
                    prop_assert_eq!(bytes.start, covered);
                    prop_assert!(needed > 0 && needed <= bytes.len());
                    prop_assert_eq!(bytes.len() as u64 % alignment, 0);
                    covered = bytes.start + needed;
                }
                prop_assert_eq!(covered, chunk.used.end);
                next += chunk.used.len() as u64;
                moved += chunk.used.len() as u64;
            }
            prop_assert_eq!(moved, length);
        }
    }
}
