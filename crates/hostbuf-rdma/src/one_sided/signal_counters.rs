//! Counters of the notifications of other hosts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use crate::one_sided::signal::Signal;
use crate::sync::{deadline, lock};

/// The longest single sleep of a thread without a deadline.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// The number of times that each signal has arrived.
pub(crate) struct SignalCounters {
    counts: [AtomicU64; Signal::ALL],
    mutex: Mutex<()>,
    arrived: Condvar,
}

impl SignalCounters {
    pub(crate) fn new() -> SignalCounters {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        SignalCounters { counts, mutex: Mutex::new(()), arrived: Condvar::new() }
    }

    /// Counts an arrival of `signal`, and wakes the threads that wait.
    pub(crate) fn notify(&self, signal: Signal) {
        let Some(count) = self.counts.get(signal.0) else { return };
        count.fetch_add(1, Ordering::Release);
        drop(lock(&self.mutex));
        self.arrived.notify_all();
    }

    /// Returns the number of times that `signal` has arrived.
    pub(crate) fn count(&self, signal: Signal) -> u64 {
        self.counts[signal.0].load(Ordering::Acquire)
    }

    /// Waits until `ready` returns true. It is called whenever a signal has arrived. Returns
    /// `false` after `timeout`.
    pub(crate) fn wait_until(&self, timeout: Duration, ready: &dyn Fn() -> bool) -> bool {
        let deadline = deadline(timeout);
        let mut guard = lock(&self.mutex);
        while !ready() {
            let left =
                deadline.map_or(MAX_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            guard = self.arrived.wait_timeout(guard, left).ignore_poison().0;
        }
        true
    }
}
