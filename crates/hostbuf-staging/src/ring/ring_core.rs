//! The common state of the handles and the threads of a ring, and the steps in which chunks move.

#![allow(unsafe_code, reason = "slots and devices access memory that their states guard")]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::host_memory::RingMemory;
use super::ring_counters::SharedCounters;
use super::ring_slot::{RingSlot, SlotRecord};
use super::transfer_queue::TransferQueue;
use super::work_signal::WorkSignal;
use crate::device::{CopyDevice, DeviceError};
use crate::read_write_at::{read_fully, write_fully};
use crate::slot_word::{ClaimedPiece, OwnedSlot};
use crate::transfer::{HostSide, TransferError, TransferState};

/// No thread waits for the device.
const NOBODY: u8 = 0;
/// A thread looks for the oldest copy.
const SEARCHING: u8 = 1;
/// A thread waits for the device, and notifies the others afterwards.
const WAITING: u8 = 2;

/// The common state of the handles and the threads of a ring.
pub(super) struct RingCore<D: CopyDevice> {
    pub(super) device: D,
    slots: Box<[RingSlot<D::Event>]>,
    queue: TransferQueue,
    pub(super) signal: WorkSignal,
    pub(super) counters: SharedCounters,
    /// The number of slots that a lost device may access for ever.
    abandoned: AtomicUsize,
    lost: OnceLock<DeviceError>,
    is_stopping: AtomicBool,
    /// [`NOBODY`], or the state of the thread that waits for the device.
    awaited: AtomicU8,
    /// The number of copies that were started.
    started: AtomicU64,
    /// Dropped after the slots, unless some are abandoned.
    memory: ManuallyDrop<Box<dyn RingMemory>>,
}

impl<D: CopyDevice> RingCore<D> {
    pub(super) fn new(
        device: D,
        slots: Box<[RingSlot<D::Event>]>,
        memory: Box<dyn RingMemory>,
    ) -> RingCore<D> {
        RingCore {
            device,
            slots,
            queue: TransferQueue::default(),
            signal: WorkSignal::default(),
            counters: SharedCounters::default(),
            abandoned: AtomicUsize::new(0),
            lost: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            awaited: AtomicU8::new(NOBODY),
            started: AtomicU64::new(0),
            memory: ManuallyDrop::new(memory),
        }
    }

    /// Starts a transfer.
    pub(super) fn start(&self, transfer: Arc<TransferState>) {
        self.counters.transfers.fetch_add(1, Ordering::Relaxed);
        if transfer.is_over() {
            return;
        }
        self.queue.push(transfer.clone());
        // It may have been lost, or begun to stop, before the transfer was in the queue.
        self.stop_if_over(&transfer);
        self.signal.notify();
    }

    /// Stops all transfers. The threads end when nothing is on its way.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        for transfer in self.queue.take_all() {
            transfer.stop(TransferError::Cancelled { landed: 0 });
        }
        self.signal.notify();
    }

    /// Stops a transfer if the ring ends, or has lost its device.
    fn stop_if_over(&self, transfer: &TransferState) {
        if let Some(lost) = self.lost.get() {
            let address = transfer.target.address();
            transfer.stop(TransferError::Device { address, source: lost.clone(), landed: 0 });
        } else if self.is_stopping.load(Ordering::SeqCst) {
            transfer.stop(TransferError::Cancelled { landed: 0 });
        }
    }

    /// Does one piece of work, if there is one. `current` is the transfer of which the calling
    /// thread has begun a chunk last.
    pub(super) fn step(&self, current: &mut Option<Arc<TransferState>>) -> bool {
        self.do_piece() || self.end_copy() || self.begin_chunk(current)
    }

    /// Returns whether the threads may end.
    pub(super) fn has_stopped(&self) -> bool {
        let free = || self.slots.iter().filter(|slot| slot.state.is_free()).count();
        self.is_stopping.load(Ordering::SeqCst)
            && self.queue.is_empty()
            && free() + self.abandoned.load(Ordering::SeqCst) == self.slots.len()
    }

    /// Waits for the oldest copy of the device. Returns false if the calling thread may sleep:
    /// there is no copy, or another thread waits for it and notifies this one afterwards.
    pub(super) fn wait_for_device(&self) -> bool {
        match self.awaited.compare_exchange(NOBODY, SEARCHING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {}
            // That thread may find no copy, since this one was asking about it.
            Err(SEARCHING) => return true,
            Err(_) => return false,
        }
        let copying = self.slots.iter().filter(|slot| slot.state.is_copying());
        let oldest = copying.min_by_key(|slot| slot.copied());
        let taken = oldest.and_then(|slot| Some((slot, slot.state.poll()?)));
        let Some((slot, owned)) = taken else {
            self.awaited.store(NOBODY, Ordering::Release);
            // Another thread has taken it, and looks for work after that.
            return false;
        };
        self.awaited.store(WAITING, Ordering::Release);
        let waited = self.counters.waiting_for_device.time(|| self.device.wait(&slot.event));
        self.awaited.store(NOBODY, Ordering::Release);
        self.copied(slot, owned, waited);
        // The threads that sleep may wait for the next copy.
        self.signal.notify();
        true
    }

    fn do_piece(&self) -> bool {
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

    /// Reads or writes the bytes of a piece.
    fn move_piece(&self, slot: &RingSlot<D::Event>, piece: &mut ClaimedPiece<'_>, record: &SlotRecord) {
        let SlotRecord { transfer, chunk, .. } = record;
        let (range, needed) = transfer.plan.piece(chunk, piece.number);
        let offset = chunk.file_offset + range.start as u64;
        match &transfer.endpoint {
            HostSide::Source(source) => {
                // SAFETY: the range is that of the piece.
                let into = unsafe { slot.piece_memory(piece, range) };
                let read = self.counters.reading.time(|| read_fully(&**source, into, needed, offset));
                match read {
                    Ok(bytes) if bytes >= needed => {}
                    Ok(bytes) => transfer.stop(TransferError::UnexpectedEnd {
                        name: source.name(),
                        offset: offset + bytes as u64,
                        landed: 0,
                    }),
                    Err(error) => transfer.stop(TransferError::Io {
                        doing: "reading",
                        name: source.name(),
                        offset,
                        source: Arc::new(error),
                        landed: 0,
                    }),
                }
            }
            HostSide::Sink(sink) => {
                let start = range.start.max(chunk.used.start);
                let end = range.start + needed;
                if start >= end {
                    return;
                }
                let offset = chunk.file_offset + start as u64;
                // SAFETY: the range is within the piece.
                let from = unsafe { slot.piece_memory(piece, start..end) };
                let written = self.counters.writing.time(|| write_fully(&**sink, from, offset));
                if let Err((bytes, error)) = written {
                    transfer.stop(TransferError::Io {
                        doing: "writing",
                        name: sink.name(),
                        offset: offset + bytes as u64,
                        source: Arc::new(error),
                        landed: 0,
                    });
                }
            }
        }
    }

    /// Goes on with a slot whose pieces are all read or written.
    fn end_pieces(&self, slot: &RingSlot<D::Event>, owned: OwnedSlot<'_>) {
        let SlotRecord { transfer, number, .. } = slot.record(&owned);
        if transfer.is_stopped() {
            transfer.skip();
            return self.free(slot, owned);
        }
        match &transfer.endpoint {
            HostSide::Source(_) => self.start_copy(slot, owned),
            HostSide::Sink(_) => {
                transfer.land(*number);
                self.free(slot, owned);
            }
        }
    }

    /// Lets the device copy a slot.
    fn start_copy(&self, slot: &RingSlot<D::Event>, owned: OwnedSlot<'_>) {
        let SlotRecord { transfer, chunk, .. } = slot.record(&owned);
        self.stop_if_over(transfer);
        if transfer.is_stopped() {
            transfer.skip();
            return self.free(slot, owned);
        }
        let memory = slot.copied_memory(&owned, chunk.used.clone());
        let address = transfer.target.address() + chunk.transfer_offset;
        slot.set_copied(&owned, self.started.fetch_add(1, Ordering::Relaxed));
        let started = match &transfer.endpoint {
            // SAFETY: nobody accesses the slot before the event is complete, and the record keeps
            // the memory of the device.
            HostSide::Source(_) => unsafe { self.device.copy_to_device(memory, address, &slot.event) },
            // SAFETY: as above.
            HostSide::Sink(_) => unsafe { self.device.copy_to_host(address, memory, &slot.event) },
        };
        match started {
            Ok(()) => {
                let (bytes, counters) = (chunk.used.len() as u64, &self.counters);
                counters.copies.fetch_add(1, Ordering::Relaxed);
                let counter = match &transfer.endpoint {
                    HostSide::Source(_) => &counters.to_device,
                    HostSide::Sink(_) => &counters.from_device,
                };
                counter.fetch_add(bytes, Ordering::Relaxed);
                owned.start_copy();
            }
            Err(error) => self.fail_copy(slot, owned, error),
        }
    }

    /// Asks the device whether it has copied a slot, and goes on with one that it has.
    fn end_copy(&self) -> bool {
        for slot in &self.slots {
            let Some(owned) = slot.state.poll() else { continue };
            match self.device.is_complete(&slot.event) {
                Ok(false) => owned.start_copy(),
                Ok(true) => {
                    self.copied(slot, owned, Ok(()));
                    return true;
                }
                Err(error) => {
                    self.copied(slot, owned, Err(error));
                    return true;
                }
            }
        }
        false
    }

    /// Goes on with a slot that the device has copied, or has failed to copy.
    fn copied(&self, slot: &RingSlot<D::Event>, owned: OwnedSlot<'_>, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.fail_copy(slot, owned, error);
        }
        let SlotRecord { transfer, number, chunk } = slot.record(&owned);
        match &transfer.endpoint {
            HostSide::Source(_) => {
                transfer.land(*number);
                self.free(slot, owned);
            }
            HostSide::Sink(_) if transfer.is_stopped() => {
                transfer.skip();
                self.free(slot, owned);
            }
            HostSide::Sink(_) => {
                let pieces = transfer.plan.pieces(chunk);
                self.offer(owned, pieces);
            }
        }
    }

    /// Stops the transfer of a slot that the device has failed to copy.
    fn fail_copy(&self, slot: &RingSlot<D::Event>, owned: OwnedSlot<'_>, error: DeviceError) {
        let SlotRecord { transfer, chunk, .. } = slot.record(&owned);
        let address = transfer.target.address() + chunk.transfer_offset;
        transfer.stop(TransferError::Device { address, source: error.clone(), landed: 0 });
        // A copy that was started and then reported as failed may still be on its way.
        let is_lost = error.is_lost()
            || error.has_started()
                && self.device.wait(&slot.event).err().is_some_and(|error| error.is_lost());
        transfer.skip();
        if !is_lost {
            return self.free(slot, owned);
        }
        // The device may access this memory, and that of the record, for ever.
        let _ = self.lost.set(error.lost());
        self.abandoned.fetch_add(1, Ordering::SeqCst);
        for transfer in self.queue.take_all() {
            self.stop_if_over(&transfer);
        }
        self.signal.notify();
    }

    /// Ends the turn of a slot.
    fn free(&self, slot: &RingSlot<D::Event>, mut owned: OwnedSlot<'_>) {
        let record = slot.replace_record(&mut owned, None);
        owned.free();
        // A record may be the last owner of memory, whose drop takes time.
        drop(record);
        self.signal.notify();
    }

    fn offer(&self, owned: OwnedSlot<'_>, pieces: u32) {
        owned.offer(pieces);
        if pieces > 1 {
            self.signal.notify();
        }
    }

    fn begin_chunk(&self, current: &mut Option<Arc<TransferState>>) -> bool {
        if current.is_none() && self.queue.is_empty() {
            return false;
        }
        let opened = self.slots.iter().find_map(|slot| Some((slot, slot.state.open()?)));
        let Some((slot, mut owned)) = opened else { return false };
        let Some((transfer, number)) = self.queue.begin_chunk(current) else {
            owned.free();
            return false;
        };
        let chunk = transfer.plan.chunk(number);
        let pieces = transfer.plan.pieces(&chunk);
        let reads = matches!(transfer.endpoint, HostSide::Source(_));
        slot.replace_record(&mut owned, Some(SlotRecord { transfer, number, chunk }));
        if reads {
            self.offer(owned, pieces);
        } else {
            self.start_copy(slot, owned);
        }
        true
    }
}

impl<D: CopyDevice> Drop for RingCore<D> {
    fn drop(&mut self) {
        if self.abandoned.load(Ordering::SeqCst) > 0 {
            tracing::error!(device = self.device.name(), "the memory of a ring stays: its device is lost");
            for slot in &mut self.slots {
                slot.abandon_record();
            }
            return;
        }
        // SAFETY: nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
