//! The steps of a ring on the side of the host: chunks begin, and their pieces are read or written.

#![allow(unsafe_code, reason = "slots guard memory by their states")]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::ring_core::RingCore;
use super::ring_slot::{RingSlot, SlotRecord};
use crate::counters::PageWord;
use crate::device::CopyDevice;
use crate::profiler_range::ThreadRange;
use crate::range_name::RangeName;
use crate::read_write_at::{ReadAt, WriteAt, read_fully, write_fully};
use crate::slot_word::{ClaimedPiece, OwnedSlot};
use crate::transfer::{HostSide, TransferError, TransferState};

impl<D: CopyDevice> RingCore<D> {
    /// Begins a chunk of a transfer, if there is one and a slot is free.
    pub(super) fn begin_chunk(&self, current: &mut Option<Arc<TransferState>>) -> bool {
        if current.is_none() && self.queue.is_empty() {
            return false;
        }
        // As in `notify_of_free_slot`.
        fence(Ordering::SeqCst);
        let Some((slot, owned)) = self.open_slot() else { return self.begin_chunk_of_oldest() };
        let Some((transfer, number)) = self.queue.begin_chunk(current) else {
            owned.free();
            self.notify_of_free_slot();
            return false;
        };
        self.begin_turn(slot, owned, SlotRecord { transfer, number });
        true
    }

    /// Begins a chunk of the oldest transfer for which a stream waits, in the slot that is reserved
    /// for it.
    fn begin_chunk_of_oldest(&self) -> bool {
        let Some((slot, owned, record)) = self.open_reserved_slot() else { return false };
        self.begin_turn(slot, owned, record);
        true
    }

    /// Begins a turn of a slot.
    fn begin_turn(&self, slot: &RingSlot<D::Event>, mut owned: OwnedSlot<'_>, record: SlotRecord) {
        let SlotRecord { transfer, number } = &record;
        let pieces = transfer.plan.pieces(*number);
        let is_first = D::IS_HOST || matches!(transfer.endpoint, HostSide::Source(_));
        slot.replace_record(&mut owned, Some(record));
        if is_first {
            self.offer(owned, pieces);
        } else {
            self.start_copy(slot, owned);
        }
    }

    /// Offers the pieces of a slot to all threads.
    pub(super) fn offer(&self, owned: OwnedSlot<'_>, pieces: u32) {
        owned.offer(pieces);
        if pieces > 1 {
            self.signal.notify();
        }
    }

    /// Moves a piece that no thread has claimed, if there is one.
    pub(super) fn do_piece(&self) -> bool {
        let piece = self.slots.iter().find_map(|slot| Some((slot, slot.state.claim()?)));
        let Some((slot, mut piece)) = piece else { return false };
        let record = slot.record_of_piece(&piece);
        self.stop_if_over(&record.transfer);
        if !record.transfer.is_stopped() {
            self.move_piece(slot, &mut piece, record);
        }
        if let Some(owned) = piece.finish() {
            self.end_pieces(slot, owned);
        }
        true
    }

    fn move_piece(&self, slot: &RingSlot<D::Event>, piece: &mut ClaimedPiece<'_>, record: &SlotRecord) {
        if D::IS_HOST {
            return self.move_host_piece(slot, piece, record);
        }
        let (SlotRecord { transfer, number }, of_slot) = (record, piece.number);
        match &transfer.endpoint {
            HostSide::Source(source) => {
                let planned = transfer.plan.piece(*number, of_slot);
                // SAFETY: the range is that of the piece.
                let into = unsafe { slot.piece_memory(piece, planned.memory) };
                self.read(transfer, &**source, (into, planned.needed), planned.file_offset);
            }
            HostSide::Sink(sink) => {
                for part in (0..).map_while(|index| transfer.plan.part(*number, of_slot, index)) {
                    if transfer.is_stopped() {
                        return;
                    }
                    // SAFETY: the range is within the piece.
                    let from = unsafe { slot.piece_memory(piece, part.memory) };
                    self.write(transfer, &**sink, from, part.file_offset);
                }
            }
        }
    }

    /// Reads at least `needed` bytes of the source of a transfer, or stops the transfer. Returns
    /// whether the bytes are there.
    pub(super) fn read(
        &self,
        transfer: &TransferState,
        source: &dyn ReadAt,
        (into, needed): (&mut [u8], usize),
        offset: u64,
    ) -> bool {
        let _range = ThreadRange::of_bytes(RangeName::ReadPiece, needed);
        let _span = transfer.span.enter();
        match self.counters.time(PageWord::Reading, || read_fully(source, into, needed, offset)) {
            Ok(bytes) if bytes >= needed => return true,
            Ok(bytes) => transfer.stop(TransferError::UnexpectedEnd {
                name: source.name(),
                offset: offset + bytes as u64,
                device: self.device.name(),
                landed: 0,
            }),
            Err((bytes, error)) => transfer.stop(TransferError::Io {
                doing: "reading",
                name: source.name(),
                offset: offset + bytes as u64,
                device: self.device.name(),
                source: Arc::new(error),
                landed: 0,
            }),
        }
        false
    }

    /// Writes bytes to the sink of a transfer, or stops the transfer.
    pub(super) fn write(&self, transfer: &TransferState, sink: &dyn WriteAt, from: &[u8], offset: u64) {
        let _range = ThreadRange::of_bytes(RangeName::WritePiece, from.len());
        let _span = transfer.span.enter();
        if let Err((bytes, error)) = self.counters.time(PageWord::Writing, || write_fully(sink, from, offset))
        {
            transfer.stop(TransferError::Io {
                doing: "writing",
                name: sink.name(),
                offset: offset + bytes as u64,
                device: self.device.name(),
                source: Arc::new(error),
                landed: 0,
            });
        }
    }

    /// Goes on with a slot whose pieces are all read or written.
    fn end_pieces(&self, slot: &RingSlot<D::Event>, owned: OwnedSlot<'_>) {
        let SlotRecord { transfer, number } = slot.record(&owned);
        if transfer.is_stopped() {
            transfer.skip();
            return self.free(slot, owned);
        }
        match &transfer.endpoint {
            HostSide::Source(_) if !D::IS_HOST => self.start_copy(slot, owned),
            _ => {
                transfer.land(*number);
                self.free(slot, owned);
            }
        }
    }
}
