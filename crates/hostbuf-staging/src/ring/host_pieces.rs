//! Pieces of a ring whose device is the host: bytes are read into their targets, and written from
//! there, without a slot between.

#![allow(unsafe_code, reason = "accesses targets, which the transfers keep")]

use super::ring_core::RingCore;
use super::ring_slot::{RingSlot, SlotRecord};
use crate::counters::PageWord;
use crate::device::CopyDevice;
use crate::read_write_at::{ReadAt, WriteAt};
use crate::slot_word::ClaimedPiece;
use crate::transfer::{HostSide, PiecePart};

impl<D: CopyDevice> RingCore<D> {
    /// Reads or writes a piece. The memory of the slot is used only if the alignment demands it.
    pub(super) fn move_host_piece(
        &self,
        slot: &RingSlot<D::Event>,
        piece: &mut ClaimedPiece<'_>,
        record: &SlotRecord,
    ) {
        match &record.transfer.endpoint {
            HostSide::Source(source) => self.read_host_piece(slot, piece, record, &**source),
            HostSide::Sink(sink) => self.write_host_piece(slot, piece, record, &**sink),
        }
    }

    fn read_host_piece(
        &self,
        slot: &RingSlot<D::Event>,
        piece: &mut ClaimedPiece<'_>,
        record: &SlotRecord,
        source: &dyn ReadAt,
    ) {
        let SlotRecord { transfer, number } = record;
        let of_slot = piece.number;
        let planned = transfer.plan.piece(*number, of_slot);
        let parts = || (0..).map_while(|index| transfer.plan.part(*number, of_slot, index));
        let mut only = parts();
        let direct = only.next().filter(|part| {
            let is_aligned = part.address.is_multiple_of(source.alignment());
            only.next().is_none() && part.memory == planned.memory && is_aligned
        });
        if let Some(part) = direct {
            // SAFETY: see `target_memory`.
            let into = unsafe { target_memory(&part) };
            self.read(transfer, source, (into, planned.needed), planned.file_offset);
        } else {
            let start = planned.memory.start;
            // SAFETY: the range is that of the piece.
            let into = unsafe { slot.piece_memory(piece, planned.memory) };
            if self.read(transfer, source, (&mut *into, planned.needed), planned.file_offset) {
                for part in parts() {
                    let read = &into[part.memory.start - start..part.memory.end - start];
                    // SAFETY: see `target_memory`.
                    unsafe { target_memory(&part) }.copy_from_slice(read);
                }
            }
        }
        let bytes: usize = parts().map(|part| part.bytes()).sum();
        self.counters.add(PageWord::ToDevice, bytes as u64);
    }

    fn write_host_piece(
        &self,
        slot: &RingSlot<D::Event>,
        piece: &mut ClaimedPiece<'_>,
        record: &SlotRecord,
        sink: &dyn WriteAt,
    ) {
        let SlotRecord { transfer, number } = record;
        let of_slot = piece.number;
        for part in (0..).map_while(|index| transfer.plan.part(*number, of_slot, index)) {
            if transfer.is_stopped() {
                return;
            }
            // SAFETY: see `target_memory`.
            let from = unsafe { target_memory(&part) };
            if part.address.abs_diff(part.file_offset).is_multiple_of(sink.alignment()) {
                self.write(transfer, sink, from, part.file_offset);
            } else {
                // SAFETY: the range is within the piece.
                let copy = unsafe { slot.piece_memory(piece, part.memory.clone()) };
                copy.copy_from_slice(from);
                self.write(transfer, sink, copy, part.file_offset);
            }
            self.counters.add(PageWord::FromDevice, part.bytes() as u64);
        }
    }
}

/// Returns the memory of a target of the host.
///
/// # Safety
/// The part is that of a piece that the caller has claimed, in a transfer whose targets are memory
/// of the host: no other transfer uses the same bytes meanwhile, unless both write to sinks.
unsafe fn target_memory<'m>(part: &PiecePart) -> &'m mut [u8] {
    // SAFETY: the caller guarantees the memory, which the transfer keeps.
    unsafe { std::slice::from_raw_parts_mut(part.address as *mut u8, part.bytes()) }
}
