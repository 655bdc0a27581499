use std::fmt;
use std::time::Duration;

use super::buckets::{BUCKETS, RANGE_NS, upper_bound_ns};

/// A copy of the counters of a [`LatencyHistogram`](crate::LatencyHistogram), or the sum of
/// several.
///
/// It formats as `p50 210 us, p99 1.2 ms, max 3 ms`, and as `no samples` if it is empty. The
/// figures are upper bounds, rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySnapshot {
    counts: [u64; BUCKETS],
}

impl LatencySnapshot {
    pub(super) const fn from_counts(counts: [u64; BUCKETS]) -> LatencySnapshot {
        LatencySnapshot { counts }
    }

    /// Returns the number of latencies: at most `u64::MAX`, even if the counters hold more.
    #[must_use]
    pub fn count(&self) -> u64 {
        u64::try_from(self.sum()).unwrap_or(u64::MAX)
    }

    /// Returns an upper bound of the quantile `q`, at most a quarter above it: at least a part `q`
    /// of the latencies lies below it. None if there are no latencies.
    ///
    /// The bound is [`Duration::MAX`] if the quantile is longer than 17 s, and 1.024 us if it is
    /// shorter than that. A `q` outside of 0 to 1 counts as the nearer of the two, and NaN as 0.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let bucket = self.bucket_of_quantile(q)?;
        Some(upper_bound_ns(bucket).map_or(Duration::MAX, Duration::from_nanos))
    }

    /// Returns an upper bound of the longest latency, as [`LatencySnapshot::quantile`] of 1 does.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        self.quantile(1.0)
    }

    /// Returns the buckets that are not empty, in ascending order: an upper bound, and the number
    /// of latencies between the bound of the bucket before and this one. The bounds are those of
    /// [`LatencySnapshot::quantile`].
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let bounded = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        bounded.map(|(bucket, &count)| {
            (upper_bound_ns(bucket).map_or(Duration::MAX, Duration::from_nanos), count)
        })
    }

    /// Adds the latencies of `other`. A counter that would overflow stays at its maximum.
    pub fn merge(&mut self, other: &LatencySnapshot) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
    }

    /// Returns the sum of the counters, which no `u64` need hold: another process wrote them.
    fn sum(&self) -> u128 {
        self.counts.iter().map(|count| u128::from(*count)).sum()
    }

    fn bucket_of_quantile(&self, q: f64) -> Option<usize> {
        let count = self.sum();
        // The conversion maps NaN to 0, and the rounding of large counts may exceed the count.
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u128).clamp(1, count.max(1));
        // The last latency is that of rank `count`, although a float may not hold the count.
        let rank = if q >= 1.0 { count } else { rank };
        let mut below = 0;
        self.counts.iter().position(|bucket| {
            below += u128::from(*bucket);
            *bucket > 0 && below >= rank
        })
    }
}

impl Default for LatencySnapshot {
    fn default() -> LatencySnapshot {
        LatencySnapshot::from_counts([0; BUCKETS])
    }
}

impl fmt::Display for LatencySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, q) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            let Some(bucket) = self.bucket_of_quantile(q) else { return f.write_str("no samples") };
            write!(f, "{separator}{name} ")?;
            match upper_bound_ns(bucket) {
                Some(ns) => write_ns(f, ns)?,
                None => {
                    f.write_str("over ")?;
                    write_ns(f, RANGE_NS)?;
                }
            }
            separator = ", ";
        }
        Ok(())
    }
}

/// Writes a bound of at least 1 us with its unit: one decimal below 10, unless it is 0.
fn write_ns(f: &mut fmt::Formatter<'_>, ns: u64) -> fmt::Result {
    let (unit, name) = match ns {
        0..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let tenths = (ns + unit / 20) / (unit / 10);
    if tenths < 100 && !tenths.is_multiple_of(10) {
        write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
    } else {
        write!(f, "{} {name}", (ns + unit / 2) / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::buckets::bucket_of;
    use super::*;
    use proptest::prelude::*;

    fn of(latencies: &[u64]) -> LatencySnapshot {
        let mut counts = [0; BUCKETS];
        latencies.iter().for_each(|ns| counts[bucket_of(*ns)] += 1);
        LatencySnapshot::from_counts(counts)
    }

    proptest! {
        #[test]
        fn quantiles_are_upper_bounds(
            latencies in prop::collection::vec(1024..RANGE_NS, 1..200),
            q in 0.0..=1.0f64,
        ) {
            let mut sorted = latencies.clone();
            sorted.sort_unstable();
            let rank = ((q * sorted.len() as f64).ceil() as usize).max(1);
            let exact = sorted[rank - 1];
            let bound = of(&latencies).quantile(q).expect("there are latencies").as_nanos() as u64;
            prop_assert!(exact < bound && bound <= exact / 4 * 5 + 5, "{exact} {bound}");
        }

        #[test]
        fn a_merge_has_the_latencies_of_both(
            first in prop::collection::vec(any::<u64>(), 0..50),
            second in prop::collection::vec(0..1u64 << 30, 0..50),
        ) {
            let mut merged = of(&first);
            merged.merge(&of(&second));
            prop_assert_eq!(merged.count(), (first.len() + second.len()) as u64);
            prop_assert_eq!(merged, of(&[first, second].concat()));
        }

        /// The counters lie in memory that another process writes.
        #[test]
        fn no_bit_pattern_panics(
            counts in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], BUCKETS),
            bits in any::<u64>(),
        ) {
            let snapshot = LatencySnapshot::from_counts(counts.try_into().unwrap());
            let has_some = snapshot.count() > 0;
            prop_assert_eq!(snapshot.quantile(f64::from_bits(bits)).is_some(), has_some);
            prop_assert_eq!(snapshot.max().is_some(), has_some);
            prop_assert!(snapshot.quantile(0.5) <= snapshot.max());
            prop_assert_eq!(snapshot.to_string() == "no samples", !has_some);
            let mut twice = snapshot.clone();
            twice.merge(&snapshot);
            prop_assert!(twice.count() >= snapshot.count());
        }
    }

    #[test]
    fn unusual_quantiles_are_those_of_the_ends() {
        let snapshot = of(&[2000, 3_000_000]);
        let (shortest, longest) = (Duration::from_nanos(2048), Duration::from_nanos(3_145_728));
        for q in [f64::NAN, f64::NEG_INFINITY, -0.5, 0.0, 0.5] {
            assert_eq!(snapshot.quantile(q), Some(shortest), "{q}");
        }
        for q in [0.51, 1.0, 7.0, f64::INFINITY] {
            assert_eq!(snapshot.quantile(q), Some(longest), "{q}");
        }
        assert_eq!(of(&[]).quantile(0.5), None);
        assert_eq!(of(&[3]).max(), Some(Duration::from_nanos(1024)));
        assert_eq!(of(&[RANGE_NS]).max(), Some(Duration::MAX));
    }

    /// A float does not hold the count, and the longest latency must be found all the same.
    #[test]
    fn the_longest_of_many_latencies_is_found() {
        let mut counts = [0; BUCKETS];
        counts[1] = (1 << 60) + 3;
        counts[20] = 1;
        let snapshot = LatencySnapshot::from_counts(counts);
        assert_eq!(snapshot.count() as f64 as u64, 1 << 60);
        assert_eq!(snapshot.max(), upper_bound_ns(20).map(Duration::from_nanos));
        assert_eq!(snapshot.quantile(0.5), upper_bound_ns(1).map(Duration::from_nanos));
    }

    #[test]
    fn a_snapshot_formats_with_units() {
        assert_eq!(of(&[]).to_string(), "no samples");
        assert_eq!(of(&[0]).to_string(), "p50 1 us, p99 1 us, max 1 us");
        let mut latencies = vec![210_000; 90];
        latencies.extend([1_200_000; 9]);
        latencies.push(3_000_000);
        assert_eq!(of(&latencies).to_string(), "p50 229 us, p99 1.3 ms, max 3.1 ms");
        assert_eq!(of(&[1 << 33]).to_string(), "p50 11 s, p99 11 s, max 11 s");
        assert_eq!(of(&[u64::MAX]).to_string(), "p50 over 17 s, p99 over 17 s, max over 17 s");
    }
}
