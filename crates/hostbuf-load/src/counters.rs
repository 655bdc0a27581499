//! The counters of a load.

use std::fmt;
use std::time::Duration;

/// The counters of a load on one host, while it runs or after it. Other processes of the job may
/// overwrite them, so they are for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadCounters {
    /// The number of bytes of all files.
    pub file_bytes: u64,
    /// The number of bytes that the ranks of this host have read from files.
    pub bytes_read: u64,
    /// The number of bytes that this host has received from other hosts, with the gaps between
    /// files.
    pub bytes_received: u64,
    /// The number of bytes that all ranks have read from files, without the headers that the first
    /// rank has read before; 0 until the load has ended.
    pub job_bytes_read: u64,
    /// The time since the beginning, or from the beginning to the end.
    pub elapsed: Duration,
    /// The time that threads have spent in reads, of all threads of this host together.
    pub reading: Duration,
    /// The part of `reading` in which the threads slept in the kernel: they have waited for the
    /// disk.
    pub waiting: Duration,
    /// The time that the leader of this host has spent in sending and receiving windows.
    pub replicating: Duration,
    /// The number of threads of this host that read.
    pub readers: u64,
    /// The number of bytes that the device of this rank has, as far as the rank knows; 0 if the
    /// load copies to none.
    pub bytes_copied: u64,
    /// The time in which the device of this rank had copies to do and was behind: it had not ended
    /// the copies of a window when the next one was ready, or when all were. A time in which the
    /// device was idle is not part of it.
    pub copying: Duration,
    /// The part of `copying` after the end of `elapsed`, in which nothing but copies was left.
    pub waiting_for_device: Duration,
}

/// The part of the machine that bounds the speed of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadBound {
    /// The disk, or the file server.
    Disk,
    /// The cores, which copy from the page cache.
    Cores,
    /// The exchange between the hosts.
    Replication,
    /// The copies to a GPU, or to another device. A ring names them
    /// [`StagingBound::Device`](hostbuf_staging::StagingBound::Device).
    Gpu,
}

impl LoadBound {
    /// Returns the name: `disk`, `cores`, `replication` or `GPU`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LoadBound::Disk => "disk",
            LoadBound::Cores => "cores",
            LoadBound::Replication => "replication",
            LoadBound::Gpu => "GPU",
        }
    }
}

impl LoadCounters {
    /// Returns the number of bytes that have arrived on this host.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_received)
    }

    /// Returns the speed in bytes a second; 0 before anything has arrived.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.bytes() as f64 / seconds } else { 0.0 }
    }

    /// Returns the time since the beginning, or from the beginning to the end of the last copy to
    /// the device of this rank. Without a device it is `elapsed`.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.elapsed.saturating_add(self.waiting_for_device)
    }

    /// Returns the part of the machine that bounds the speed: the GPU if it was behind for more
    /// than half of the time, or else what reading takes the time for. `None` before anything was
    /// read.
    #[must_use]
    pub fn bound(&self) -> Option<LoadBound> {
        if self.reading.is_zero() && self.replicating.is_zero() {
            return None;
        }
        // The threads read at the same time, and the leader replicates beside them.
        let readers = u32::try_from(self.readers).unwrap_or(u32::MAX).max(1);
        Some(match () {
            () if self.copying > self.duration() / 2 => LoadBound::Gpu,
            () if self.replicating > self.reading / readers => LoadBound::Replication,
            () if self.waiting > self.reading / 2 => LoadBound::Disk,
            () => LoadBound::Cores,
        })
    }
}

impl fmt::Display for LoadBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(reading: u64, waiting: u64, replicating: u64, readers: u64) -> LoadCounters {
        let [reading, waiting, replicating] = [reading, waiting, replicating].map(Duration::from_millis);
        LoadCounters { reading, waiting, replicating, readers, ..LoadCounters::default() }
    }

    #[test]
    fn the_bound_is_where_the_time_goes() {
        assert_eq!(counters(0, 0, 0, 0).bound(), None);
        assert_eq!(counters(80, 70, 5, 8).bound(), Some(LoadBound::Disk));
        assert_eq!(counters(80, 10, 5, 8).bound(), Some(LoadBound::Cores));
        assert_eq!(counters(80, 10, 15, 8).bound(), Some(LoadBound::Replication));
        assert_eq!(counters(80, 70, 15, 4).bound(), Some(LoadBound::Disk));
        assert_eq!(counters(0, 0, 1, 0).bound(), Some(LoadBound::Replication));
    }

    #[test]
    fn a_gpu_that_is_behind_for_most_of_the_time_is_the_bound() {
        let bound = |elapsed: u64, copying: u64, waiting: u64| {
            let [elapsed, copying, waiting] = [elapsed, copying, waiting].map(Duration::from_millis);
            let times =
                LoadCounters { elapsed, copying, waiting_for_device: waiting, ..counters(80, 70, 0, 8) };
            (times.duration(), times.bound())
        };
        let total = Duration::from_millis(110);
        // The copies of the last windows are behind after any load.
        assert_eq!(bound(100, 10, 10), (total, Some(LoadBound::Disk)));
        assert_eq!(bound(100, 105, 10), (total, Some(LoadBound::Gpu)));
        assert_eq!(bound(10, 100, 100), (total, Some(LoadBound::Gpu)));
        // While windows are being read.
        assert_eq!(bound(110, 100, 0), (total, Some(LoadBound::Gpu)));
    }

    #[test]
    fn the_rate_counts_what_has_arrived() {
        let arrived = LoadCounters {
            bytes_read: 300,
            bytes_received: 100,
            elapsed: Duration::from_secs(2),
            ..LoadCounters::default()
        };
        assert!((arrived.rate() - 200.0).abs() < 1e-9);
        assert!(LoadCounters::default().rate().abs() < 1e-9);
    }
}
