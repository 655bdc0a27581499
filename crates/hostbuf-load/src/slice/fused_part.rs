//! One of several matrices that are stored as one.

use std::ops::Range;

use super::slice_error::SliceError;

/// One of several matrices that are stored as one tensor along a dimension, such as the queries of
/// a fused QKV matrix. Each rank takes its share of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedPart {
    size: u64,
    shares: Option<usize>,
}

impl FusedPart {
    /// Makes a part of `size` elements along the dimension, with a share for each rank.
    #[must_use]
    pub fn new(size: u64) -> FusedPart {
        FusedPart { size, shares: None }
    }

    /// Sets the number of shares, if there are fewer than ranks: ranks next to each other then take
    /// the same share. It is the number of KV heads, if more ranks than those are used.
    #[must_use]
    pub fn shares(mut self, shares: usize) -> FusedPart {
        self.shares = Some(shares);
        self
    }

    /// Returns the number of elements along the dimension.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the elements of a rank, from the beginning of the part. `index` is that of the part,
    /// for errors.
    pub(super) fn share(&self, index: usize, rank: usize, ranks: usize) -> Result<Range<u64>, SliceError> {
        let shares = self.shares.unwrap_or(ranks);
        if shares == 0 || !ranks.is_multiple_of(shares) {
            return Err(SliceError::Shares { part: index, shares, ranks });
        }
        if !self.size.is_multiple_of(shares as u64) {
            return Err(SliceError::Uneven { part: index, size: self.size, shares });
        }
        let (length, share) = (self.size / shares as u64, (rank / (ranks / shares)) as u64);
        Ok(share * length..(share + 1) * length)
    }
}
