//! One read of the files.

use std::time::{Duration, Instant};

use hostbuf_load::LoadBound;
use hostbuf_staging::{RingCounters, StagingBound};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The figures of one read of the files.
#[derive(Clone, Copy, Debug)]
pub(super) struct BenchSample {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    /// The CPU time of all threads of the process, in the program and in the kernel.
    pub(super) cpu: Duration,
    /// The counts of the ring during the read.
    pub(super) counters: RingCounters,
    /// False if all bytes came from memory.
    pub(super) needs_disk: bool,
}

impl BenchSample {
    /// Measures `read`, which returns the number of bytes that it has read. `counters` returns
    /// those of its ring.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn of<E>(
        counters: impl Fn() -> RingCounters,
        read: impl FnOnce() -> Result<u64, E>,
    ) -> Result<BenchSample, E> {
        let (earlier, cpu, begun) = (counters(), cpu_time(), Instant::now());
        let bytes = read()?;
        let elapsed = begun.elapsed();
        let cpu = cpu_time().saturating_sub(cpu);
        Ok(BenchSample { bytes, elapsed, cpu, counters: counters().since(&earlier), needs_disk: true })
    }

    /// Returns the sample of median duration: of an even number, the slower of the two in the
    /// middle. `None` if there is no sample.
    pub(super) fn median(samples: &[BenchSample]) -> Option<BenchSample> {
        let mut sorted = samples.to_vec();
        sorted.sort_by_key(|sample| sample.elapsed);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Returns the rate in bytes a second.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns the CPU time in seconds for each GiB.
    pub(super) fn cpu_per_gib(&self) -> f64 {
        self.cpu.as_secs_f64() * (1u64 << 30) as f64 / self.bytes.max(1) as f64
    }

    /// Returns the part of the machine that bounds the rate, by the names of [`LoadBound`] and of
    /// [`StagingBound::Slots`], which no load has. The source of a ring is the disk if it needs one
    /// and the threads have slept for more than half of the time of their reads, or else the cores,
    /// which copy from the page cache.
    pub(super) fn bound_by(&self) -> &'static str {
        match self.counters.bound() {
            StagingBound::Source if self.needs_disk && self.cpu < self.counters.reading / 2 => {
                LoadBound::Disk.name()
            }
            StagingBound::Source => LoadBound::Cores.name(),
            StagingBound::Device => LoadBound::Gpu.name(),
            other => other.name(),
        }
    }
}

/// Returns the CPU time of this process so far.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    let microseconds = usage.map(|usage| (usage.user_time() + usage.system_time()).num_microseconds());
    Duration::from_micros(microseconds.map_or(0, i64::unsigned_abs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(milliseconds: u64) -> BenchSample {
        let (elapsed, cpu) = (Duration::from_millis(milliseconds), Duration::from_millis(500));
        BenchSample { bytes: 2 << 30, elapsed, cpu, counters: RingCounters::default(), needs_disk: true }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |times: &[u64]| {
            let samples: Vec<BenchSample> = times.iter().copied().map(sample).collect();
            BenchSample::median(&samples).map(|found| found.elapsed.as_millis())
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[9, 1, 5]), Some(5));
        assert_eq!(of(&[1, 9]), Some(9));
    }

    #[test]
    fn figures_are_those_of_the_bytes() {
        let sample = sample(2000);
        assert!((sample.rate() - (1u64 << 30) as f64).abs() < 1.0);
        assert!((sample.cpu_per_gib() - 0.25).abs() < 1e-9);
        assert_eq!(sample.bound_by(), "idle");
    }

    #[test]
    fn a_source_whose_threads_sleep_is_the_disk() {
        let mut counters = RingCounters::default();
        let time = Duration::from_secs(2);
        (counters.workers, counters.active, counters.reading) = (1, time, time);
        let bound =
            |cpu| BenchSample { cpu: Duration::from_millis(cpu), counters, ..sample(2000) }.bound_by();
        assert_eq!((bound(100), bound(1900)), ("disk", "cores"));
        counters.copying = time;
        assert_eq!(BenchSample { counters, ..sample(2000) }.bound_by(), "GPU");
    }
}
