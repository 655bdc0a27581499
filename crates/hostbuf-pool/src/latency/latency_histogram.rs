use std::sync::atomic::{AtomicU64, Ordering};

use super::buckets::{BUCKETS, bucket_of};
use super::latency_snapshot::LatencySnapshot;

/// A histogram of latencies that can lie in shared memory: the threads of a process record, and
/// other processes read.
///
/// It consists of counters alone. Each bit pattern of its [`LatencyHistogram::SIZE`] bytes is a
/// histogram, so a reader needs no trust in the recording process, and memory of zeros is an empty
/// histogram. Reading needs no write access.
///
/// There are four buckets for each power of two of nanoseconds from about 1 us to 17 s, so a
/// latency in that range is known with an error of at most a quarter.
///
/// ```
/// use hostbuf_pool::LatencyHistogram;
///
/// let histogram = LatencyHistogram::new();
/// for micros in 1..=1000 {
///     histogram.record(micros * 1000);
/// }
/// let snapshot = histogram.snapshot();
/// assert_eq!(snapshot.to_string(), "p50 524 us, p99 1 ms, max 1 ms");
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LatencyHistogram {
    counts: [AtomicU64; BUCKETS],
}

impl LatencyHistogram {
    /// The size of a histogram in bytes: 98 counters of 8 bytes, and padding to whole cache lines.
    pub const SIZE: usize = 832;

    /// Returns an empty histogram.
    #[must_use]
    pub const fn new() -> LatencyHistogram {
        LatencyHistogram { counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }

    /// Counts a latency of `ns` nanoseconds. This is a single atomic addition, without an order
    /// towards other memory.
    pub fn record(&self, ns: u64) {
        self.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets all latencies.
    pub(crate) fn reset(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Returns a copy of the counters. Latencies that are recorded meanwhile may be missing from
    /// it.
    #[must_use]
    pub fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot::from_counts(std::array::from_fn(|bucket| {
            self.counts[bucket].load(Ordering::Relaxed)
        }))
    }
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram::new()
    }
}

/// The size and the alignment are part of the layout of files that processes share.
const _: () =
    assert!(size_of::<LatencyHistogram>() == LatencyHistogram::SIZE && align_of::<LatencyHistogram>() == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_latency_of_many_threads_is_lost() {
        let histogram = LatencyHistogram::new();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let histogram = &histogram;
                scope.spawn(move || (0..1000).for_each(|ns| histogram.record(ns << (8 * thread))));
            }
        });
        assert_eq!(histogram.snapshot().count(), 4000);
    }

    #[test]
    fn a_new_histogram_is_empty() {
        assert_eq!(LatencyHistogram::default().snapshot(), LatencySnapshot::default());
    }

    proptest! {
        #[test]
        fn a_snapshot_has_the_recorded_latencies(latencies in prop::collection::vec(0..1u64 << 36, 0..50)) {
            let histogram = LatencyHistogram::new();
            latencies.iter().for_each(|ns| histogram.record(*ns));
            let mut counts = [0; BUCKETS];
            latencies.iter().for_each(|ns| counts[bucket_of(*ns)] += 1);
            prop_assert_eq!(histogram.snapshot(), LatencySnapshot::from_counts(counts));
        }
    }
}
