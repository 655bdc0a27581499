//! The transfers whose chunks have not all begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf_os::poison::IgnorePoison;

use crate::sync::Mutex;
use crate::transfer::TransferState;

/// The transfers whose chunks have not all begun, in the order in which they were started. A thread
/// takes the lock once for each transfer, not for each chunk.
#[derive(Debug, Default)]
pub(super) struct TransferQueue {
    transfers: Mutex<VecDeque<Arc<TransferState>>>,
    /// The number of transfers.
    length: AtomicUsize,
}

impl TransferQueue {
    /// Adds a transfer.
    pub(super) fn push(&self, transfer: Arc<TransferState>) {
        let mut transfers = self.transfers.lock().ignore_poison();
        transfers.push_back(transfer);
        self.length.store(transfers.len(), Ordering::SeqCst);
    }

    /// Returns whether there may be a chunk to begin.
    pub(super) fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    /// Begins a chunk. `current` is the transfer of which the calling thread has begun one last.
    pub(super) fn begin_chunk(
        &self,
        current: &mut Option<Arc<TransferState>>,
    ) -> Option<(Arc<TransferState>, u64)> {
        loop {
            if let Some(transfer) = current
                && let Some(chunk) = transfer.begin_chunk()
            {
                return Some((transfer.clone(), chunk));
            }
            *current = None;
            if self.is_empty() {
                return None;
            }
            *current = self.first();
            current.as_ref()?;
        }
    }

    /// Returns the first transfer with a chunk to begin. The transfers before it leave the queue.
    fn first(&self) -> Option<Arc<TransferState>> {
        let mut ended = Vec::new();
        let mut transfers = self.transfers.lock().ignore_poison();
        while transfers.front().is_some_and(|transfer| transfer.has_begun_all()) {
            ended.extend(transfers.pop_front());
        }
        self.length.store(transfers.len(), Ordering::SeqCst);
        let first = transfers.front().cloned();
        drop(transfers);
        // A transfer may be the last owner of memory: it is dropped outside the lock.
        drop(ended);
        first
    }

    /// Empties the queue.
    pub(super) fn take_all(&self) -> Vec<Arc<TransferState>> {
        let mut transfers = self.transfers.lock().ignore_poison();
        self.length.store(0, Ordering::SeqCst);
        transfers.drain(..).collect()
    }
}
