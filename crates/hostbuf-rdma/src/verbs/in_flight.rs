//! Work requests in progress, and the threads that wait for their completions.
//!
//! No thread exists only to poll for completions. One of the waiting threads polls, and the others
//! sleep until it has found some. Between two polls it sleeps as well, until the device has an
//! event, or busy-polls if the options say so.
//!
//! Requests are posted in *batches*. Only the last request of a batch is signaled: its completion
//! reports the whole batch. A failed request reports itself too, and so do all requests behind it.
//! The status of a batch is stored in a word of its own, so the slots of its requests are free as
//! soon as it has completed, whether or not anybody reads the status.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::limits::MAX_BATCH;
use crate::peer::PeerId;
use crate::sync::{deadline, lock};
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::queue_pair::QueuePair;
use hostbuf::error::Result;

/// The longest sleep between two polls. Events are not lost; the limit is for a device that is
/// gone.
const MAX_SLEEP: Duration = Duration::from_millis(200);

/// The limits of the requests in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightLimits {
    /// The maximum number of requests to all peers.
    pub(crate) total: u32,
    /// The maximum number of requests to one peer.
    pub(crate) depth: u32,
}

/// The index of a slot for a request, which is also the identifier of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotIndex(u32);

impl From<SlotIndex> for u64 {
    fn from(slot: SlotIndex) -> u64 {
        slot.0.into()
    }
}

/// The status of a batch of requests.
pub(crate) struct BatchStatus(AtomicU32);

impl BatchStatus {
    /// Returns the status of the first request that failed, 0 if none did, or `None` if the batch
    /// is in progress.
    pub(crate) fn get(&self) -> Option<u32> {
        self.0.load(Ordering::Acquire).checked_sub(1)
    }
}

/// The slots of a batch of requests, in the order in which the requests are posted.
pub(crate) struct Batch {
    count: usize,
    slots: [SlotIndex; MAX_BATCH],
    pub(crate) status: Arc<BatchStatus>,
}

impl Batch {
    /// Returns the slots. They are the identifiers of the requests.
    pub(crate) fn slots(&self) -> &[SlotIndex] {
        &self.slots[..self.count]
    }
}

/// The slot of a request. The slot of the last request of a batch has the fields of the batch.
#[derive(Default)]
struct RequestSlot {
    /// The slot of the last request, for all others.
    last: Option<SlotIndex>,
    peer: PeerId,
    /// The slots of the requests before the last one.
    before: Vec<SlotIndex>,
    /// The status of the first request that failed.
    failed: Option<u32>,
    status: Option<Arc<BatchStatus>>,
    /// The queue pair, which must exist until its requests have completed: a destroyed queue pair
    /// reports no completions.
    queue_pair: Option<Arc<QueuePair>>,
}

/// The number of requests to a peer.
#[derive(Clone, Copy, Default)]
struct PeerCount {
    in_progress: u32,
    completed: u64,
}

struct RequestTable {
    slots: Vec<RequestSlot>,
    free: Vec<SlotIndex>,
    peers: Vec<PeerCount>,
}

/// The work requests in progress of a process. See the [module](self).
pub(crate) struct InFlight {
    completions: Arc<CompletionQueue>,
    busy_poll: bool,
    limits: InFlightLimits,
    table: Mutex<RequestTable>,
    /// True while a thread polls for all.
    polling: Mutex<bool>,
    polled: Condvar,
}

impl InFlight {
    /// Makes room for requests to `peers` peers.
    pub(crate) fn new(
        completions: Arc<CompletionQueue>,
        limits: InFlightLimits,
        peers: usize,
        busy_poll: bool,
    ) -> InFlight {
        let table = Mutex::new(RequestTable {
            slots: (0..limits.total).map(|_| RequestSlot::default()).collect(),
            free: (0..limits.total).rev().map(SlotIndex).collect(),
            peers: vec![PeerCount::default(); peers],
        });
        InFlight { completions, busy_poll, limits, table, polling: Mutex::new(false), polled: Condvar::new() }
    }

    /// Returns the maximum number of requests of a batch.
    pub(crate) fn max_batch(&self) -> usize {
        MAX_BATCH.min(self.limits.depth as usize)
    }

    /// Reserves slots for a batch of `count` requests to `peer`, which the caller posts to
    /// `queue_pair`. Waits for free slots as long as a request to `peer` completes at least once in
    /// every `timeout`. Returns `None` if none does.
    ///
    /// # Errors
    /// [`Error::Os`](hostbuf::Error::Os).
    pub(crate) fn reserve(
        &self,
        peer: PeerId,
        count: usize,
        queue_pair: &Arc<QueuePair>,
        timeout: Duration,
    ) -> Result<Option<Batch>> {
        debug_assert!((1..=self.max_batch()).contains(&count));
        let mut completed = self.count(peer).completed;
        loop {
            let mut batch = None;
            self.wait(deadline(timeout), || {
                // `wait` may call this again after it succeeded.
                batch = batch
                    .take()
                    .or_else(|| lock(&self.table).reserve(peer, count, self.limits.depth, queue_pair));
                batch.is_some()
            })?;
            if batch.is_some() {
                return Ok(batch);
            }
            let before = std::mem::replace(&mut completed, self.count(peer).completed);
            if before == completed {
                return Ok(None);
            }
        }
    }

    /// Releases the slots of a batch of which no request was posted.
    pub(crate) fn cancel(&self, batch: &Batch) {
        let mut released = Vec::new();
        if let Some(&last) = batch.slots().last() {
            lock(&self.table).complete_batch(last, 0, &mut released);
        }
    }

    /// Returns the number of requests to `peer` in progress.
    pub(crate) fn in_progress(&self, peer: PeerId) -> u32 {
        self.count(peer).in_progress
    }

    fn count(&self, peer: PeerId) -> PeerCount {
        lock(&self.table).peers[peer.0]
    }

    /// Polls once for completions, and returns their number.
    ///
    /// # Errors
    /// [`Error::Os`](hostbuf::Error::Os).
    fn poll(&self) -> Result<usize> {
        // Dropped after the lock is released, since destroying a queue pair is a system call.
        let mut released = Vec::new();
        let count = {
            // The lock is held during the poll: a slot must not be used again before its completion
            // is in the table.
            let mut table = lock(&self.table);
            self.completions.poll(|completion| {
                let status = completion.error().map_or(0, |(status, _)| status);
                table.complete(SlotIndex(completion.wr_id() as u32), status, &mut released);
            })?
        };
        Ok(count)
    }

    /// Polls once for a thread that does not wait, and wakes the threads that do.
    ///
    /// # Errors
    /// [`Error::Os`](hostbuf::Error::Os).
    pub(crate) fn poll_once(&self) -> Result<()> {
        if self.poll()? > 0 {
            drop(lock(&self.polling));
            self.polled.notify_all();
        }
        Ok(())
    }

    /// Waits until `done` returns true. `done` is called whenever a request has completed. Returns
    /// `false` at the deadline.
    ///
    /// # Errors
    /// [`Error::Os`](hostbuf::Error::Os).
    pub(crate) fn wait(&self, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> Result<bool> {
        loop {
            if done() {
                return Ok(true);
            }
            let sleep = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return Ok(false),
                Some(left) => left.min(MAX_SLEEP),
                None => MAX_SLEEP,
            };
            let mut polling = lock(&self.polling);
            // Another thread may have polled since, and its notification came before this lock.
            if done() {
                return Ok(true);
            }
            if *polling {
                drop(self.polled.wait_timeout(polling, sleep).ignore_poison());
                continue;
            }
            *polling = true;
            drop(polling);
            let guard = PollingGuard(self);
            self.poll_or_sleep(sleep, &mut done)?;
            drop(guard);
        }
    }

    fn poll_or_sleep(&self, sleep: Duration, done: &mut impl FnMut() -> bool) -> Result<()> {
        if self.poll()? > 0 {
            return Ok(());
        }
        if self.busy_poll {
            std::hint::spin_loop();
            return Ok(());
        }
        self.completions.request_event()?;
        // Completions before the request cause no event, nor do those that `poll_once` has taken.
        if self.poll()? > 0 || done() {
            return Ok(());
        }
        let mut fds = [PollFd::new(self.completions.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(sleep.as_millis().max(1) as i32).unwrap_or(PollTimeout::ZERO);
        // The result does not matter: the caller checks its condition again, also after an
        // interrupt.
        let is_silent = poll(&mut fds, timeout) == Ok(0);
        if self.poll()? == 0 && is_silent {
            let failed = lock(&self.table).failed_queue_pairs();
            failed.iter().for_each(|queue_pair| queue_pair.flush_again());
        }
        Ok(())
    }
}

impl RequestTable {
    fn reserve(
        &mut self,
        peer: PeerId,
        count: usize,
        depth: u32,
        queue_pair: &Arc<QueuePair>,
    ) -> Option<Batch> {
        if self.peers[peer.0].in_progress + count as u32 > depth {
            return None;
        }
        let left = self.free.len().checked_sub(count)?;
        let status = Arc::new(BatchStatus(AtomicU32::new(0)));
        let mut batch = Batch { count, slots: [SlotIndex::default(); MAX_BATCH], status: status.clone() };
        batch.slots[..count].copy_from_slice(&self.free[left..]);
        self.free.truncate(left);
        self.peers[peer.0].in_progress += count as u32;
        let (&last, before) = batch.slots().split_last()?;
        for &slot in before {
            self.slots[slot.0 as usize].last = Some(last);
        }
        let slot = &mut self.slots[last.0 as usize];
        (slot.peer, slot.last, slot.failed) = (peer, None, None);
        (slot.status, slot.queue_pair) = (Some(status), Some(queue_pair.clone()));
        slot.before.extend_from_slice(before);
        Some(batch)
    }

    /// Returns the failed queue pairs that have requests in progress.
    fn failed_queue_pairs(&self) -> Vec<Arc<QueuePair>> {
        let mut failed: Vec<Arc<QueuePair>> = Vec::new();
        for queue_pair in self.slots.iter().filter_map(|slot| slot.queue_pair.as_ref()) {
            if queue_pair.has_failed() && !failed.iter().any(|known| Arc::ptr_eq(known, queue_pair)) {
                failed.push(queue_pair.clone());
            }
        }
        failed
    }

    /// Records the completion of the request in `slot`.
    fn complete(&mut self, slot: SlotIndex, status: u32, released: &mut Vec<Arc<QueuePair>>) {
        let Some(request) = self.slots.get(slot.0 as usize) else { return };
        let last = request.last.unwrap_or(slot);
        if let (1.., Some(queue_pair)) = (status, &self.slots[last.0 as usize].queue_pair) {
            queue_pair.set_failed();
        }
        match request.last {
            // An unsignaled request reports only a failure. The batch ends with its last request.
            Some(last) => {
                let first = &mut self.slots[last.0 as usize].failed;
                *first = first.or(Some(status));
            }
            None => {
                let status = request.failed.unwrap_or(status);
                self.complete_batch(slot, status, released);
            }
        }
    }

    /// Releases the slots of the batch whose last slot is `last`, and publishes its status.
    fn complete_batch(&mut self, last: SlotIndex, status: u32, released: &mut Vec<Arc<QueuePair>>) {
        let slot = &mut self.slots[last.0 as usize];
        let Some(batch_status) = slot.status.take() else { return };
        let (peer, count) = (slot.peer, slot.before.len() as u32 + 1);
        released.extend(slot.queue_pair.take());
        let mut before = std::mem::take(&mut slot.before);
        self.free.append(&mut before);
        self.free.push(last);
        // The next batch uses its allocation.
        self.slots[last.0 as usize].before = before;
        self.peers[peer.0].in_progress -= count;
        self.peers[peer.0].completed += u64::from(count);
        batch_status.0.store(status + 1, Ordering::Release);
    }
}

/// The role of the thread that polls. Dropping it passes the role to another thread.
struct PollingGuard<'a>(&'a InFlight);

impl Drop for PollingGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.0.polling) = false;
        self.0.polled.notify_all();
    }
}
