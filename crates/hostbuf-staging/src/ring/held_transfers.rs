//! The transfers for which streams wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use hostbuf_os::poison::IgnorePoison;

use super::device_wait::DeviceWait;
use crate::device::StreamCopies;
use crate::sync::Mutex;
use crate::transfer::TransferState;

/// No slot is reserved.
const NO_SLOT: usize = usize::MAX;

/// The transfers that block a stream, in the order in which their copies were enqueued.
///
/// A copy of such a transfer comes after the earlier work of its stream, and may come after that of
/// other streams, since the device has few queues. All of that is work for earlier transfers, or of
/// the program. So the oldest transfer always goes on, if it gets a slot; the slots of all others
/// may be in use until it has ended. One slot is reserved for it.
#[derive(Debug)]
pub(super) struct HeldTransfers {
    transfers: Mutex<VecDeque<HeldTransfer>>,
    /// The number of transfers that have not ended.
    count: Arc<AtomicUsize>,
    /// The lock of the thread that enqueues copies.
    order: Mutex<()>,
    /// The index of the slot that only the oldest transfer uses.
    reserved: AtomicUsize,
    /// The number of threads that look for a slot to reserve it.
    reserving: Arc<AtomicUsize>,
    /// The number of polls for copies that have ended.
    polls: AtomicUsize,
    /// The one thread that polls.
    pub(super) polling: DeviceWait,
    /// True while a thread asks the driver.
    is_asking: AtomicBool,
}

#[derive(Debug)]
struct HeldTransfer {
    transfer: Weak<TransferState>,
    has_ended: Arc<AtomicBool>,
}

impl Default for HeldTransfers {
    fn default() -> HeldTransfers {
        HeldTransfers {
            transfers: Mutex::default(),
            count: Arc::default(),
            order: Mutex::default(),
            reserved: AtomicUsize::new(NO_SLOT),
            reserving: Arc::default(),
            polls: AtomicUsize::new(0),
            polling: DeviceWait::default(),
            is_asking: AtomicBool::new(false),
        }
    }
}

impl HeldTransfers {
    /// Appends a transfer to the list, and returns the lock under which its copies are enqueued.
    pub(super) fn begin(&self, transfer: &Arc<TransferState>) -> (MutexGuard<'_, ()>, CountedTransfer) {
        let guard = self.order.lock().ignore_poison();
        let has_ended = Arc::new(AtomicBool::new(false));
        self.count.fetch_add(1, Ordering::SeqCst);
        let held = HeldTransfer { transfer: Arc::downgrade(transfer), has_ended: has_ended.clone() };
        let mut transfers = self.transfers.lock().ignore_poison();
        transfers.retain(|one| !one.has_ended.load(Ordering::SeqCst));
        transfers.push_back(held);
        drop(transfers);
        (guard, CountedTransfer { count: self.count.clone(), has_ended })
    }

    /// Returns whether a stream waits for a transfer.
    pub(super) fn are_pending(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Returns the oldest transfer that has not ended.
    pub(super) fn oldest(&self) -> Option<Arc<TransferState>> {
        if !self.are_pending() {
            return None;
        }
        let mut transfers = self.transfers.lock().ignore_poison();
        while transfers.front()?.has_ended.load(Ordering::SeqCst) {
            transfers.pop_front();
        }
        transfers.front()?.transfer.upgrade()
    }

    /// Counts a poll for copies that have ended, and returns their number.
    pub(super) fn count_poll(&self) -> usize {
        self.polls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Asks the driver, unless another thread does: the call may wait for a thread that has a lock
    /// of the driver, and that waits for a stream.
    pub(super) fn ask<R>(&self, ask: impl FnOnce() -> R) -> Option<R> {
        if self.is_asking.swap(true, Ordering::Acquire) {
            return None;
        }
        let answer = ask();
        self.is_asking.store(false, Ordering::Release);
        Some(answer)
    }

    /// Returns the index of the slot that only the oldest transfer uses.
    pub(super) fn reserved(&self) -> Option<usize> {
        Some(self.reserved.load(Ordering::SeqCst)).filter(|&index| index != NO_SLOT)
    }

    /// Reserves a slot, which the calling thread owns, unless one is reserved.
    pub(super) fn reserve(&self, index: usize) {
        let _ = self.reserved.compare_exchange(NO_SLOT, index, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Lets the threads of the ring leave free slots to the calling thread until the returned value
    /// is dropped.
    pub(super) fn begin_reserving(&self) -> impl Drop + use<> {
        self.reserving.fetch_add(1, Ordering::SeqCst);
        ReservingThread(self.reserving.clone())
    }

    /// Returns whether a thread looks for a slot to reserve it.
    pub(super) fn is_reserving(&self) -> bool {
        self.reserving.load(Ordering::SeqCst) > 0
    }
}

/// A thread that looks for a slot to reserve it.
struct ReservingThread(Arc<AtomicUsize>);

impl Drop for ReservingThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A transfer that counts as one for which a stream waits.
pub(super) struct CountedTransfer {
    count: Arc<AtomicUsize>,
    has_ended: Arc<AtomicBool>,
}

impl Drop for CountedTransfer {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The copies of a transfer, which end when it does.
pub(super) struct EndedCopies {
    copies: Arc<dyn StreamCopies>,
    _counted: CountedTransfer,
}

impl EndedCopies {
    pub(super) fn new(copies: Arc<dyn StreamCopies>, counted: CountedTransfer) -> EndedCopies {
        EndedCopies { copies, _counted: counted }
    }
}

impl Drop for EndedCopies {
    fn drop(&mut self) {
        self.copies.end();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::TransferError;
    use crate::counters::{CounterPage, RingShape};
    use crate::read_write_at::ReadAt;
    use crate::transfer::HostSide;

    struct EmptySource;

    impl ReadAt for EmptySource {
        fn name(&self) -> String {
            "an empty source".into()
        }

        fn read_at(&self, _into: &mut [u8], _offset: u64) -> std::io::Result<usize> {
            Ok(0)
        }
    }

    #[test]
    fn transfers_that_have_ended_leave_the_list() {
        let shape = RingShape { slots: 1, slot_bytes: 4096, piece_bytes: 4096, workers: 1 };
        let counters = Arc::new(CounterPage::new("a device", shape).unwrap());
        let transfer = || {
            let source = HostSide::Source(Arc::new(EmptySource));
            Arc::new(TransferState::failed(source, TransferError::Forked, counters.clone()))
        };
        let held = HeldTransfers::default();
        let (first, second) = (transfer(), transfer());
        let (guard, of_first) = held.begin(&first);
        drop(guard);
        for _ in 0..100 {
            let (guard, counted) = held.begin(&second);
            drop((guard, counted));
        }
        assert!(held.transfers.lock().unwrap().len() <= 2);
        assert!(held.are_pending() && Arc::ptr_eq(&held.oldest().unwrap(), &first));
        drop(of_first);
        assert!(!held.are_pending() && held.oldest().is_none());
    }
}
