//! The division of many ranges of a file into the contents of slots.

use std::ops::Range;

use super::planned_piece::{PiecePart, PlanSizes, PlannedPiece};
use crate::device::DeviceTarget;
use crate::slot_word::MAX_PIECES;

/// The largest number of bytes between two ranges that one read covers: reading them takes less
/// time than a second read.
const MAX_GAP: u64 = 16 << 10;

/// A range of a file, and the memory of a device that it moves to or from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferPart {
    /// The offset in the file in bytes.
    pub offset: u64,
    /// The memory, which is as long as the range.
    pub target: DeviceTarget,
}

impl TransferPart {
    /// Makes a part.
    #[must_use]
    pub fn new(offset: u64, target: DeviceTarget) -> TransferPart {
        TransferPart { offset, target }
    }
}

/// The division of many ranges of a file, each with a target, into chunks. Ranges that lie near
/// each other in the file are read together, and slots are filled with as many as fit:
///
/// ```text
/// file    |..aaa.bb|....................|ccccccccc|........|dd......
/// slot 0  |..aaa.bb|ccccccccc|dd......                  three pieces, one copy for each letter
/// ```
#[derive(Debug, Default)]
pub(crate) struct GatherPlan {
    alignment: u64,
    parts: Box<[GatherPart]>,
    pieces: Box<[GatherPiece]>,
    /// The pieces of each chunk.
    chunks: Box<[Range<u32>]>,
    bytes: u64,
    /// Kept until the transfer has ended.
    _targets: Box<[TransferPart]>,
}

/// Contiguous bytes of the file.
#[derive(Debug)]
struct GatherPiece {
    /// The offset in the slot of the first byte.
    slot_offset: usize,
    /// The offset in the file of the first byte.
    file_offset: u64,
    /// The number of bytes from there to the end of the last part.
    needed: usize,
    parts: Range<usize>,
    /// The number of bytes of the parts of all pieces before.
    bytes_before: u64,
}

/// A part of a piece.
#[derive(Debug)]
struct GatherPart {
    /// The offset in the piece of the first byte.
    offset: usize,
    bytes: usize,
    address: u64,
}

impl GatherPlan {
    /// Plans reads: bytes of the file may be in several targets.
    pub(crate) fn for_reads(parts: Vec<TransferPart>, sizes: PlanSizes) -> GatherPlan {
        GatherPlan::new(parts, sizes, MAX_GAP)
    }

    /// Plans writes, or returns the offset from which on two ranges overlap.
    pub(crate) fn for_writes(mut parts: Vec<TransferPart>, sizes: PlanSizes) -> Result<GatherPlan, u64> {
        parts.sort_by_key(|part| part.offset);
        let overlap = parts.windows(2).find(|pair| pair[1].offset - pair[0].offset < pair[0].target.bytes());
        match overlap {
            Some(pair) => Err(pair[1].offset),
            // Nothing is written that is not in a target.
            None => Ok(GatherPlan::new(parts, sizes, 0)),
        }
    }

    fn new(mut parts: Vec<TransferPart>, sizes: PlanSizes, gap: u64) -> GatherPlan {
        parts.retain(|part| part.target.bytes() > 0);
        parts.sort_by_key(|part| part.offset);
        let (pieces, planned) = divide(&parts, sizes, gap);
        let (pieces, chunks) = pack(pieces, sizes);
        let bytes = parts.iter().map(|part| part.target.bytes()).sum();
        GatherPlan {
            alignment: sizes.alignment,
            parts: planned.into(),
            pieces: pieces.into(),
            chunks: chunks.into(),
            bytes,
            _targets: parts.into(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    pub(crate) fn bytes_before(&self, chunk: u64) -> u64 {
        self.of(chunk, 0).bytes_before
    }

    pub(crate) fn pieces(&self, chunk: u64) -> u32 {
        self.chunks[chunk as usize].len() as u32
    }

    pub(crate) fn piece(&self, chunk: u64, number: u32) -> PlannedPiece {
        let &GatherPiece { slot_offset, file_offset, needed, .. } = self.of(chunk, number);
        let end = slot_offset + needed.next_multiple_of(self.alignment as usize);
        PlannedPiece { memory: slot_offset..end, file_offset, needed }
    }

    pub(crate) fn part(&self, chunk: u64, number: u32, index: usize) -> Option<PiecePart> {
        let piece = self.of(chunk, number);
        let &GatherPart { offset, bytes, address } = self.parts[piece.parts.clone()].get(index)?;
        let start = piece.slot_offset + offset;
        let file_offset = piece.file_offset + offset as u64;
        Some(PiecePart { memory: start..start + bytes, file_offset, address })
    }

    fn of(&self, chunk: u64, number: u32) -> &GatherPiece {
        &self.pieces[(self.chunks[chunk as usize].start + number) as usize]
    }
}

/// Divides ranges, which are sorted by their offsets, into pieces, without places in slots.
fn divide(parts: &[TransferPart], sizes: PlanSizes, gap: u64) -> (Vec<GatherPiece>, Vec<GatherPart>) {
    let PlanSizes { alignment, piece_bytes, .. } = sizes;
    let (mut pieces, mut planned) = (Vec::<GatherPiece>::new(), Vec::<GatherPart>::new());
    let mut bytes_before = 0;
    for part in parts {
        let mut done = 0;
        while done < part.target.bytes() {
            let at = part.offset + done;
            let fits = |piece: &GatherPiece| {
                let end = piece.file_offset + piece.needed as u64;
                (piece.file_offset..=end + gap).contains(&at) && at - piece.file_offset < piece_bytes as u64
            };
            if !pieces.last().is_some_and(fits) {
                let (file_offset, first) = (at / alignment * alignment, planned.len());
                let parts = first..first;
                pieces.push(GatherPiece { slot_offset: 0, file_offset, needed: 0, parts, bytes_before });
            }
            let piece = pieces.last_mut().expect("one was added");
            let offset = (at - piece.file_offset) as usize;
            let bytes = (part.target.bytes() - done).min((piece_bytes - offset) as u64) as usize;
            planned.push(GatherPart { offset, bytes, address: part.target.address() + done });
            piece.parts.end = planned.len();
            piece.needed = piece.needed.max(offset + bytes);
            (done, bytes_before) = (done + bytes as u64, bytes_before + bytes as u64);
        }
    }
    (pieces, planned)
}

/// Gives pieces their places in slots, and returns the pieces of each chunk.
fn pack(mut pieces: Vec<GatherPiece>, sizes: PlanSizes) -> (Vec<GatherPiece>, Vec<Range<u32>>) {
    let (mut chunks, mut first, mut used) = (Vec::new(), 0, 0);
    for (number, piece) in pieces.iter_mut().enumerate() {
        let bytes = piece.needed.next_multiple_of(sizes.alignment as usize);
        if used + bytes > sizes.slot_bytes || number - first == MAX_PIECES as usize {
            chunks.push(first as u32..number as u32);
            (first, used) = (number, 0);
        }
        piece.slot_offset = used;
        used += bytes;
    }
    if first < pieces.len() {
        chunks.push(first as u32..pieces.len() as u32);
    }
    (pieces, chunks)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::device::SimulatedMemory;

    const SIZES: PlanSizes = PlanSizes { alignment: 1, slot_bytes: 16384, piece_bytes: 4096 };

    fn part(offset: u64, bytes: usize) -> TransferPart {
        TransferPart::new(offset, DeviceTarget::new(Arc::new(SimulatedMemory::new(bytes))))
    }

    #[test]
    fn near_ranges_are_read_together_and_far_ones_share_a_slot() {
        let sizes = PlanSizes { alignment: 512, ..SIZES };
        let plan = GatherPlan::for_reads(vec![part(100_000, 10), part(600, 100), part(1000, 50)], sizes);
        assert_eq!((plan.chunks(), plan.pieces(0), plan.bytes()), (1, 2, 160));
        assert_eq!(plan.piece(0, 0), PlannedPiece { memory: 0..1024, file_offset: 512, needed: 538 });
        assert_eq!(plan.piece(0, 1).memory, 1024..1536);
        assert_eq!(plan.part(0, 0, 1).unwrap().memory, 488..538);
        assert_eq!(plan.part(0, 0, 2), None);
    }

    #[test]
    fn writes_touch_nothing_between_the_ranges() {
        let plan = GatherPlan::for_writes(vec![part(200, 10), part(100, 50)], SIZES).unwrap();
        assert_eq!((plan.pieces(0), plan.piece(0, 0).needed), (2, 50));
        assert_eq!(GatherPlan::for_writes(vec![part(100, 50), part(149, 1)], SIZES).unwrap_err(), 149);
    }

    proptest! {
        #[test]
        fn each_byte_of_each_range_is_in_one_part(
            ranges in prop::collection::vec((0u64..100_000, 1usize..20_000), 0..20),
            alignment in prop::sample::select(vec![1u64, 512, 4096]),
        ) {
            let parts: Vec<_> = ranges.iter().map(|&(offset, bytes)| part(offset, bytes)).collect();
            let plan = GatherPlan::for_reads(parts.clone(), PlanSizes { alignment, ..SIZES });
            let mut moved = Vec::new();
            for chunk in 0..plan.chunks() {
                prop_assert_eq!(plan.bytes_before(chunk), moved.iter().map(|(_, _, bytes)| bytes).sum::<u64>());
                let mut used = 0;
                for number in 0..plan.pieces(chunk) {
                    let piece = plan.piece(chunk, number);
                    prop_assert!(piece.memory.start == used && piece.memory.end <= SIZES.slot_bytes);
                    prop_assert!(piece.needed > 0 && piece.needed <= SIZES.piece_bytes);
                    prop_assert_eq!((piece.file_offset % alignment, piece.memory.len() as u64 % alignment), (0, 0));
                    used = piece.memory.end;
                    for part in (0..).map_while(|index| plan.part(chunk, number, index)) {
                        prop_assert!(part.memory.end <= piece.memory.start + piece.needed);
                        let in_piece = (part.memory.start - piece.memory.start) as u64;
                        prop_assert_eq!(part.file_offset, piece.file_offset + in_piece);
                        moved.push((part.address, part.file_offset, part.bytes() as u64));
                    }
                }
            }
            // Each target is covered once, from its first byte to its last.
            for part in &parts {
                let (start, mut next) = (part.target.address(), part.target.address());
                for &(_, offset, bytes) in moved.iter().filter(|(address, ..)| {
                    (start..start + part.target.bytes()).contains(address)
                }) {
                    prop_assert_eq!(offset - part.offset, next - start);
                    next += bytes;
                }
                prop_assert_eq!(next - start, part.target.bytes());
            }
        }
    }
}
