//! Locks and deadlines.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

/// Locks `mutex`, also if a thread that held it has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

/// Returns the time in `timeout` from now, or `None` if the clock does not reach that far.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Returns the time left until `deadline`, or the longest duration if there is no deadline.
pub(crate) fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}
