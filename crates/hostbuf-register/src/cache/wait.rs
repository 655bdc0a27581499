//! The time that a request waits, and for what.

use std::time::{Duration, Instant};

/// The longest sleep of a thread that waits for a lease to end. A thread that drops a lease checks
/// for waiters without a fence, and may miss one.
pub(super) const RECHECK: Duration = Duration::from_millis(2);
/// The shortest sleep of a waiting thread.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
/// The time for which a request on a device without overlapping registrations waits for other
/// threads' changes of memory.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// The events for which a request waits.
#[derive(Clone, Copy)]
pub(super) enum WaitMode {
    /// Deregistrations, and registrations by other threads.
    Progress,
    /// Deregistrations, registrations by other threads, and the ends of leases, until the given
    /// time.
    Leases(Instant),
}

impl WaitMode {
    /// Returns the time until which the request waits, if it waits for leases.
    #[inline]
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            WaitMode::Progress => None,
            WaitMode::Leases(until) => Some(until),
        }
    }

    /// Returns whether the time of a request that waits for leases is over.
    #[inline]
    pub(super) fn is_over(self) -> bool {
        self.until().is_some_and(|until| Instant::now() >= until)
    }
}

/// Returns the time of one sleep of a thread that waits, at most until `until`.
#[inline]
pub(super) fn sleep_time(until: Option<Instant>) -> Duration {
    let left = until.map_or(RECHECK, |until| until.saturating_duration_since(Instant::now()).min(RECHECK));
    left.max(SHORTEST_SLEEP)
}
