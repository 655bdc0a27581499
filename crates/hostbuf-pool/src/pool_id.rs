//! The identity of a pool.

use std::fmt;

/// The identity of a pool: 128 random bits, which a broker draws when it starts. Tokens contain it,
/// so a token of one pool is never valid in another, also after a restart of the broker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(u128);

impl PoolId {
    /// Makes an identity from its bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> PoolId {
        PoolId(bits)
    }

    /// Returns the bits.
    #[must_use]
    pub const fn to_bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolId({self})")
    }
}
