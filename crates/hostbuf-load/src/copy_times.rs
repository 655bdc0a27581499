//! The times of the copies of a load to a device.

use std::time::Duration;

use crate::clock::since_boot;
use crate::counters::LoadCounters;
use crate::progress::LoadProgress;

/// The times of the copies of a load to the device of a rank. Events of devices do not tell when
/// they were completed, so the rank observes the device whenever a window is ready.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyTimes {
    /// The time of the last observation, since the host was booted.
    seen: Duration,
    copying: Duration,
    /// The part of `copying` after the end of the load.
    waiting: Duration,
    pub(crate) bytes_copied: u64,
}

impl CopyTimes {
    /// Ends the time since the last call. `was_copying` is true if the device had copies to do in
    /// all of it: the copies that had started before the last call have not ended since.
    pub(crate) fn observe(&mut self, was_copying: bool, progress: &LoadProgress) {
        let now = since_boot();
        if was_copying {
            self.copying += now.saturating_sub(self.seen);
            let ended = progress.ended().unwrap_or(now);
            self.waiting += now.saturating_sub(ended.max(self.seen));
        }
        self.seen = now;
    }

    /// Completes the counters of a host by those of the copies.
    pub(crate) fn complete(&self, counters: LoadCounters) -> LoadCounters {
        LoadCounters {
            bytes_copied: self.bytes_copied,
            copying: self.copying,
            waiting_for_device: self.waiting,
            ..counters
        }
    }
}
