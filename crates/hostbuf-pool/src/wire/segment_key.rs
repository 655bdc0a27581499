//! The identity of a segment.

use std::fmt;

use crate::pool_id::PoolId;

/// The identity of a segment: its pool, and its number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
// Exhaustive: a segment has nothing else that identifies it.
pub struct SegmentKey {
    /// The pool of the broker that made the segment. A later broker keeps it.
    pub pool: PoolId,
    /// The number of the segment in its pool, which no other segment of the pool ever has.
    pub number: u32,
}

impl SegmentKey {
    /// Returns the numbers of the identity.
    pub(super) fn to_numbers(self) -> [u64; 3] {
        let bits = self.pool.to_bits();
        [bits as u64, (bits >> 64) as u64, u64::from(self.number)]
    }

    /// Returns the identity with these numbers, or `None` if there is none.
    pub(super) fn from_numbers([low, high, number]: [u64; 3]) -> Option<SegmentKey> {
        let pool = PoolId::from_bits(u128::from(high) << 64 | u128::from(low));
        Some(SegmentKey { pool, number: u32::try_from(number).ok()? })
    }
}

impl fmt::Display for SegmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} of pool {}", self.number, self.pool)
    }
}
