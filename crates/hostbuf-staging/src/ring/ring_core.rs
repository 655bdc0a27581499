//! The common state of the handles and the threads of a ring.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use super::device_wait::DeviceWait;
use super::held_transfers::HeldTransfers;
use super::ring_life::RingLife;
use super::ring_slot::RingSlot;
use super::stream_transfers::StreamTransfers;
use super::transfer_queue::TransferQueue;
use super::work_signal::WorkSignal;
use hostbuf_register::own_ranges::FreezeObserver;
use hostbuf_register::{RingMemory, Span};

use crate::counters::{CounterPage, PageWord};
use crate::device::{CopyDevice, DeviceError};
use crate::slot_word::OwnedSlot;
use crate::transfer::{TransferError, TransferState};

/// The common state of the handles and the threads of a ring.
pub(super) struct RingCore<D: CopyDevice> {
    pub(super) device: D,
    pub(super) slots: Box<[RingSlot<D::Event>]>,
    pub(super) queue: TransferQueue,
    pub(super) signal: Arc<WorkSignal>,
    pub(super) after_streams: Arc<StreamTransfers>,
    pub(super) held: HeldTransfers,
    pub(super) counters: Arc<CounterPage>,
    /// The number of slots that a lost device may access for ever.
    pub(super) abandoned: AtomicUsize,
    pub(super) lost: OnceLock<DeviceError>,
    is_stopping: AtomicBool,
    pub(super) device_wait: DeviceWait,
    /// The number of copies that were started.
    pub(super) started: AtomicU64,
    pub(super) life: RingLife,
    /// The number of threads of the ring.
    pub(super) workers: usize,
}

impl<D: CopyDevice> RingCore<D> {
    pub(super) fn new(
        device: D,
        slots: Box<[RingSlot<D::Event>]>,
        counters: CounterPage,
        (memory, workers): (Box<dyn RingMemory>, usize),
    ) -> RingCore<D> {
        let signal = Arc::new(WorkSignal::default());
        RingCore {
            device,
            slots,
            queue: TransferQueue::default(),
            after_streams: Arc::new(StreamTransfers::new(signal.clone())),
            held: HeldTransfers::default(),
            signal,
            counters: Arc::new(counters),
            abandoned: AtomicUsize::new(0),
            lost: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            device_wait: DeviceWait::default(),
            started: AtomicU64::new(0),
            life: RingLife::new(memory),
            workers,
        }
    }

    /// Starts a transfer.
    pub(super) fn start(&self, transfer: Arc<TransferState>) {
        self.counters.add(PageWord::Transfers, 1);
        if transfer.is_over() {
            return;
        }
        transfer.begin();
        if transfer.stream_copies().is_none() && self.read_short(&transfer) {
            return;
        }
        self.queue.push(transfer.clone());
        // It may have been lost, or begun to stop, before the transfer was in the queue.
        self.stop_if_over(&transfer);
        self.signal.notify();
    }

    /// Stops all transfers. The threads end when nothing is in flight.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        for transfer in self.queue.take_all().into_iter().chain(self.after_streams.take_all()) {
            transfer.stop(TransferError::Cancelled { landed: 0 });
        }
        self.signal.notify();
    }

    /// Returns whether the ring goes on, and has not lost its device.
    pub(super) fn is_usable(&self) -> bool {
        self.lost.get().is_none() && !self.is_stopping.load(Ordering::SeqCst)
    }

    /// Stops a transfer if the ring ends, or has lost its device.
    pub(super) fn stop_if_over(&self, transfer: &TransferState) {
        if let Some(lost) = self.lost.get() {
            transfer.stop_by_device(None, lost.clone());
        } else if self.is_stopping.load(Ordering::SeqCst) {
            transfer.stop(TransferError::Cancelled { landed: 0 });
        }
    }

    /// Does one piece of work, if there is one. `current` is the transfer of which the calling
    /// thread has begun a chunk last.
    pub(super) fn step(&self, current: &mut Option<Arc<TransferState>>) -> bool {
        self.do_piece() || self.end_copy() || self.begin_after_streams() || self.begin_chunk(current)
    }

    /// Begins the transfers before which the work of a stream has ended. Returns whether there were
    /// any.
    fn begin_after_streams(&self) -> bool {
        let ended = self.after_streams.take_ended();
        let has_ended = !ended.is_empty();
        for (transfer, result) in ended {
            match result {
                Ok(()) => self.start(transfer),
                Err(error) => transfer.stop_by_device(None, error),
            }
        }
        has_ended
    }

    /// Returns whether there may be a chunk that no thread has begun.
    pub(super) fn has_chunks(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether the threads may end.
    pub(super) fn has_stopped(&self) -> bool {
        if !self.is_stopping.load(Ordering::SeqCst) {
            return false;
        }
        // Either this thread sees a slot that was opened meanwhile, or the thread that has opened
        // it sees that the ring ends.
        fence(Ordering::SeqCst);
        let free = self.slots.iter().filter(|slot| slot.state.is_free()).count();
        self.queue.is_empty() && free + self.abandoned.load(Ordering::SeqCst) == self.slots.len()
    }

    /// Ends the turn of a slot.
    pub(super) fn free(&self, slot: &RingSlot<D::Event>, mut owned: OwnedSlot<'_>) {
        let record = slot.replace_record(&mut owned, None);
        owned.free();
        // A record may be the last owner of memory, whose drop takes time.
        drop(record);
        self.notify_of_free_slot();
    }

    /// Notifies the threads of the ring of a free slot, if one may sleep until there is one.
    pub(super) fn notify_of_free_slot(&self) {
        // Either this thread sees the chunk, or the thread that waits for a slot, or the end of the
        // ring, or the thread that sees them and then looks for a free slot finds this one.
        fence(Ordering::SeqCst);
        if self.has_chunks() || self.held.is_reserving() || self.is_stopping.load(Ordering::SeqCst) {
            self.signal.notify();
        }
    }
}

impl<D: CopyDevice> FreezeObserver for RingCore<D> {
    /// Ends the ring, and gives its memory back.
    fn end_uses(&self, span: Span) -> Result<(), String> {
        if !self.life.uses(span) {
            return Ok(());
        }
        self.stop();
        self.life.wait_for_threads();
        if self.abandoned.load(Ordering::SeqCst) > 0 {
            return Err(format!(
                "{} was lost while it copied, and may access {span} for ever",
                self.device.name()
            ));
        }
        self.life.release_memory();
        Ok(())
    }

    fn prepare(&self, _: Span) -> Result<(), String> {
        Ok(())
    }
}

impl<D: CopyDevice> Drop for RingCore<D> {
    fn drop(&mut self) {
        // The thread of a device that still has work before a transfer must not drop it.
        drop(self.after_streams.take_all());
        if self.abandoned.load(Ordering::SeqCst) > 0 {
            tracing::error!(
                device = self.device.name(),
                "the memory of a ring is leaked, because its device is lost and may still access it"
            );
            self.life.keep_memory();
            for slot in &mut self.slots {
                slot.abandon_record();
            }
        }
    }
}
