//! The counters of a ring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The counts of a ring since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingCounters {
    /// The number of transfers that were started.
    pub transfers: u64,
    /// The number of bytes that the device was given.
    pub to_device: u64,
    /// The number of bytes that the device has given.
    pub from_device: u64,
    /// The number of copies of the device.
    pub copies: u64,
    /// The time that threads have spent in reads of sources, of all threads together.
    pub reading: Duration,
    /// The time that threads have spent in writes to sinks, of all threads together.
    pub writing: Duration,
    /// The time that threads have waited for the device, because there was nothing else to do.
    pub waiting_for_device: Duration,
}

/// The counters that threads add to.
#[derive(Debug, Default)]
pub(super) struct SharedCounters {
    pub(super) transfers: AtomicU64,
    pub(super) to_device: AtomicU64,
    pub(super) from_device: AtomicU64,
    pub(super) copies: AtomicU64,
    pub(super) reading: StallClock,
    pub(super) writing: StallClock,
    pub(super) waiting_for_device: StallClock,
}

/// The sum of the times that threads spend in one kind of operation.
#[derive(Debug, Default)]
pub(super) struct StallClock(AtomicU64);

impl StallClock {
    /// Runs `operation` and adds its time.
    pub(super) fn time<T>(&self, operation: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = operation();
        self.0.fetch_add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl SharedCounters {
    pub(super) fn get(&self) -> RingCounters {
        RingCounters {
            transfers: self.transfers.load(Ordering::Relaxed),
            to_device: self.to_device.load(Ordering::Relaxed),
            from_device: self.from_device.load(Ordering::Relaxed),
            copies: self.copies.load(Ordering::Relaxed),
            reading: self.reading.get(),
            writing: self.writing.get(),
            waiting_for_device: self.waiting_for_device.get(),
        }
    }
}
