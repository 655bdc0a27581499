//! The time limit on the start of a job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time since a rank of this host last made progress, and the limit on it.
pub(super) struct Deadline {
    pub(super) limit: Option<Duration>,
    /// The limit until all ranks of this host have connected, if the network namespace of this
    /// agent seems to hide it from them.
    pub(super) isolated: Option<Duration>,
    pub(super) since: Instant,
    /// The number of ranks that have connected.
    pub(super) connected: Arc<AtomicU64>,
}

impl Deadline {
    pub(super) fn new(limit: Option<Duration>, isolated: Option<Duration>) -> Deadline {
        Deadline { limit, isolated, since: Instant::now(), connected: Arc::default() }
    }

    /// Restarts the time limit.
    pub(super) fn progress(&mut self) {
        self.since = Instant::now();
    }

    /// Counts a rank, and restarts the time limit.
    pub(super) fn rank_connected(&mut self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
        self.progress();
    }
}
