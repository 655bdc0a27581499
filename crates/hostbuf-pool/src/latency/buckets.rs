//! The buckets of a histogram of latencies: four for each power of two of nanoseconds, so that a
//! bucket's upper bound is at most a quarter larger than its lower bound.
//!
//! | buckets | latencies |
//! | --- | --- |
//! | 0 | less than 2^10 ns, about 1 us |
//! | 1 to 96 | less than 2^34 ns, about 17 s; bucket 1 + 4 i + j starts at (4 + j) 2^(8 + i) ns |
//! | 97 | all others |

/// The power of two at which the buckets start.
const SMALLEST_POWER: u32 = 10;
/// The power of two at which they end.
const LARGEST_POWER: u32 = 34;
/// The binary logarithm of the number of buckets for each power of two.
const SPLIT: u32 = 2;

/// The number of buckets.
pub(super) const BUCKETS: usize = 2 + (((LARGEST_POWER - SMALLEST_POWER) as usize) << SPLIT);
/// The upper bound of all buckets but the last, in nanoseconds.
pub(super) const RANGE_NS: u64 = 1 << LARGEST_POWER;

/// Returns the number of the bucket that counts a latency of `ns` nanoseconds.
pub(super) const fn bucket_of(ns: u64) -> usize {
    if ns < 1 << SMALLEST_POWER {
        return 0;
    }
    if ns >= RANGE_NS {
        return BUCKETS - 1;
    }
    let power = ns.ilog2();
    // The two bits behind the highest one.
    let part = (ns >> (power - SPLIT)) as usize & ((1 << SPLIT) - 1);
    1 + (((power - SMALLEST_POWER) as usize) << SPLIT) + part
}

/// Returns the upper bound of the latencies in `bucket`, in nanoseconds; None for the last bucket,
/// which has none. The bound itself belongs to the next bucket.
pub(super) const fn upper_bound_ns(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    // The lower bound of the next bucket.
    let (power, part) = (bucket >> SPLIT, bucket as u64 & ((1 << SPLIT) - 1));
    Some(((1 << SPLIT) + part) << (power as u32 + SMALLEST_POWER - SPLIT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_latency_lies_between_the_bounds_of_its_bucket(ns in any::<u64>(), shift in 0..64u32) {
            let ns = ns >> shift;
            let bucket = bucket_of(ns);
            prop_assert!(bucket < BUCKETS);
            prop_assert!(upper_bound_ns(bucket).is_none_or(|bound| ns < bound));
            if let Some(before) = bucket.checked_sub(1) {
                prop_assert!(upper_bound_ns(before).is_some_and(|bound| ns >= bound));
            }
        }
    }

    #[test]
    fn buckets_are_quarters_of_powers_of_two() {
        let bounds: Vec<u64> = (0..BUCKETS).map_while(upper_bound_ns).collect();
        assert_eq!(bounds[..6], [1024, 1280, 1536, 1792, 2048, 2560]);
        assert_eq!((bounds.len(), *bounds.last().unwrap()), (97, 1 << 34));
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= pair[0] / 4 * 5));
        for (bucket, &bound) in bounds.iter().enumerate() {
            assert_eq!((bucket_of(bound - 1), bucket_of(bound)), (bucket, bucket + 1));
        }
    }
}
