//! The reasons why a tensor has no such slice.

use std::fmt;

/// The reason why a tensor has no such slice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SliceError {
    /// The tensor has no such dimension.
    NoDimension {
        /// The requested dimension, from 0.
        dim: usize,
        /// The number of dimensions.
        dims: usize,
    },
    /// There is no such rank.
    NoRank {
        /// The requested rank, from 0.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A fused part cannot be divided into equal shares.
    Uneven {
        /// The index of the part.
        part: usize,
        /// The number of its elements along the dimension.
        size: u64,
        /// The number of shares.
        shares: usize,
    },
    /// The shares of a fused part cannot be given to equally many ranks each.
    Shares {
        /// The index of the part.
        part: usize,
        /// The number of shares.
        shares: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// The fused parts do not fill the dimension.
    Parts {
        /// The dimension.
        dim: usize,
        /// The sum of the parts.
        sum: u64,
        /// The number of elements of the dimension.
        size: u64,
    },
    /// The slice would begin or end within a byte, since elements are smaller than a byte.
    WithinByte {
        /// The dimension.
        dim: usize,
        /// The length of an element in bits.
        bits: u32,
    },
}

impl fmt::Display for SliceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SliceError::NoDimension { dim, dims } => {
                write!(f, "invalid dimension {dim}: the tensor has {dims} dimensions, from 0 on")
            }
            SliceError::NoRank { rank, ranks } => {
                write!(f, "invalid rank {rank}: expected one of {ranks} ranks, from 0 on")
            }
            SliceError::Uneven { part, size, shares } => write!(
                f,
                "part {part} of {size} elements cannot be divided into {shares} equal shares: use a number of ranks that divides it, \
                 or state fewer shares (FusedPart::shares)"
            ),
            SliceError::Shares { part, shares, ranks } => write!(
                f,
                "{shares} shares of part {part} cannot be given to {ranks} ranks: expected a number of shares that divides the number \
                 of ranks"
            ),
            SliceError::Parts { dim, sum, size } => write!(
                f,
                "the parts have {sum} elements together, and dimension {dim} has {size}: state the sizes of all parts"
            ),
            SliceError::WithinByte { dim, bits } => write!(
                f,
                "the slice along dimension {dim} would begin or end within a byte, since an element has {bits} bits: slice another \
                 dimension, or use another number of ranks"
            ),
        }
    }
}

impl std::error::Error for SliceError {}
