//! The transfers that begin after the work of a stream.

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hostbuf_os::poison::IgnorePoison;

use super::work_signal::WorkSignal;
use crate::device::DeviceError;
use crate::sync::Mutex;
use crate::transfer::TransferState;

/// The transfers that wait for the work of a stream. A thread of the device states that the work
/// has ended; a thread of the ring begins the transfer, since only it may drop one: that may call
/// the device.
#[derive(Debug)]
pub(super) struct StreamTransfers {
    waiting: Mutex<Vec<StreamTransfer>>,
    /// The number of transfers that can be taken.
    ended: AtomicUsize,
    /// The number of the next transfer.
    next: AtomicU64,
    signal: Arc<WorkSignal>,
}

#[derive(Debug)]
struct StreamTransfer {
    number: u64,
    transfer: Arc<TransferState>,
    /// The result of the work before, once it has ended.
    result: Option<Result<(), DeviceError>>,
    /// False while work is enqueued on the stream.
    is_ordered: bool,
}

impl StreamTransfer {
    fn can_be_taken(&self) -> bool {
        self.is_ordered && self.result.is_some()
    }
}

impl StreamTransfers {
    pub(super) fn new(signal: Arc<WorkSignal>) -> StreamTransfers {
        StreamTransfers {
            waiting: Mutex::default(),
            ended: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            signal,
        }
    }

    /// Adds a transfer, and returns its number. It is not taken before
    /// [`end_order`](StreamTransfers::end_order).
    pub(super) fn add(&self, transfer: Arc<TransferState>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().ignore_poison().push(StreamTransfer {
            number,
            transfer,
            result: None,
            is_ordered: false,
        });
        number
    }

    /// Removes a transfer, unless it was taken.
    pub(super) fn remove(&self, number: u64) {
        // A transfer is dropped outside the lock.
        let _removed = {
            let mut waiting = self.waiting.lock().ignore_poison();
            let found = waiting.iter().position(|one| one.number == number);
            let removed = found.map(|index| waiting.swap_remove(index));
            if removed.as_ref().is_some_and(StreamTransfer::can_be_taken) {
                self.ended.fetch_sub(1, Ordering::SeqCst);
            }
            removed
        };
    }

    /// States that the work before a transfer has ended. It calls no device.
    pub(super) fn end_work(&self, number: u64, result: Result<(), DeviceError>) {
        self.change(number, |one| one.result = Some(result));
    }

    /// States that all work for a transfer was enqueued.
    pub(super) fn end_order(&self, number: u64) {
        self.change(number, |one| one.is_ordered = true);
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut StreamTransfer)) {
        {
            let mut waiting = self.waiting.lock().ignore_poison();
            let found = waiting.iter_mut().find(|one| one.number == number);
            let Some(one) = found else { return };
            change(one);
            if !one.can_be_taken() {
                return;
            }
            self.ended.fetch_add(1, Ordering::SeqCst);
        }
        self.signal.notify();
    }

    /// Takes the transfers whose work has ended.
    pub(super) fn take_ended(&self) -> Vec<(Arc<TransferState>, Result<(), DeviceError>)> {
        if self.ended.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock().ignore_poison();
        let mut ended = Vec::new();
        *waiting = take(&mut *waiting)
            .into_iter()
            .filter_map(|mut one| match one.result.take() {
                Some(result) if one.is_ordered => {
                    ended.push((one.transfer, result));
                    None
                }
                result => Some(StreamTransfer { result, ..one }),
            })
            .collect();
        self.ended.fetch_sub(ended.len(), Ordering::SeqCst);
        ended
    }

    /// Takes all transfers.
    pub(super) fn take_all(&self) -> Vec<Arc<TransferState>> {
        let mut waiting = self.waiting.lock().ignore_poison();
        self.ended.store(0, Ordering::SeqCst);
        waiting.drain(..).map(|one| one.transfer).collect()
    }
}
