//! A part of a tensor along one dimension.

use std::ops::Range;
use std::slice;

use super::fused_part::FusedPart;
use super::slice_error::SliceError;
use super::strided_part::StridedPart;
use crate::table::{ArrayOrder, Dtype, TensorEntry};

/// A part of a tensor along one dimension: its shape, and the bytes that it consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorSlice {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The number of elements in each dimension.
    pub shape: Vec<u64>,
    /// The order of the elements, as in the tensor.
    pub order: ArrayOrder,
    /// The number of bytes of the slice, packed without gaps.
    pub bytes: u64,
    /// The parts, each within the tensor and within the slice. There is none if the slice is empty.
    pub parts: Vec<StridedPart>,
}

impl TensorSlice {
    /// Copies the slice out of the bytes of its tensor.
    ///
    /// # Panics
    /// If `tensor` is shorter than the tensor, or `into` than the slice.
    pub fn copy(&self, tensor: &[u8], into: &mut [u8]) {
        for part in &self.parts {
            for (row, at) in part.rows() {
                let from = &tensor[row.start as usize..row.end as usize];
                into[at as usize..][..from.len()].copy_from_slice(from);
            }
        }
    }
}

impl TensorEntry {
    /// Returns the slice of all elements.
    #[must_use]
    pub fn whole(&self) -> TensorSlice {
        let bytes = self.bytes();
        let parts = StridedPart::whole(bytes).into_iter().collect();
        TensorSlice { dtype: self.dtype, shape: self.shape.clone(), order: self.order, bytes, parts }
    }

    /// Returns the part of rank `rank` of `ranks` along dimension `dim`. It is divided as by
    /// `torch.chunk`: all ranks get as many elements as the first, except the last ones, which get
    /// fewer or none if the number of ranks does not divide the dimension.
    ///
    /// # Errors
    /// [`SliceError`].
    #[doc(alias = "torch.chunk")]
    pub fn slice(&self, dim: usize, rank: usize, ranks: usize) -> Result<TensorSlice, SliceError> {
        let size = self.dimension(dim, rank, ranks)?;
        let length = size.div_ceil(ranks as u64);
        let start = length.saturating_mul(rank as u64).min(size);
        let end = start.saturating_add(length).min(size);
        self.select(dim, slice::from_ref(&(start..end)))
    }

    /// Returns the shares of rank `rank` of `ranks` of several parts that are adjacent along
    /// dimension `dim`: of a fused QKV matrix, or of gate and up projections. In the slice the
    /// shares are adjacent in the same order. In contrast to
    /// [`slice`](TensorEntry::slice), parts that cannot be divided into equal shares are refused,
    /// since the shares of different parts belong together.
    ///
    /// # Errors
    /// [`SliceError`].
    pub fn fused_slice(
        &self,
        dim: usize,
        parts: &[FusedPart],
        rank: usize,
        ranks: usize,
    ) -> Result<TensorSlice, SliceError> {
        let size = self.dimension(dim, rank, ranks)?;
        let sum = parts.iter().map(FusedPart::size).fold(0, u64::saturating_add);
        if sum != size {
            return Err(SliceError::Parts { dim, sum, size });
        }
        let mut start = 0;
        let mut ranges = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let share = part.share(index, rank, ranks)?;
            ranges.push(start + share.start..start + share.end);
            start += part.size();
        }
        self.select(dim, &ranges)
    }

    /// Checks the operands of a slice, and returns the number of elements of the dimension.
    fn dimension(&self, dim: usize, rank: usize, ranks: usize) -> Result<u64, SliceError> {
        if rank >= ranks {
            return Err(SliceError::NoRank { rank, ranks });
        }
        let dims = self.shape.len();
        self.shape.get(dim).copied().ok_or(SliceError::NoDimension { dim, dims })
    }

    /// Returns the slice of several ranges of elements along a dimension.
    fn select(&self, dim: usize, ranges: &[Range<u64>]) -> Result<TensorSlice, SliceError> {
        let mut shape = self.shape.clone();
        shape[dim] = ranges.iter().map(|range| range.end - range.start).sum();
        let mut selected =
            TensorSlice { dtype: self.dtype, shape, order: self.order, bytes: 0, parts: Vec::new() };
        if self.bytes() == 0 {
            return Ok(selected);
        }
        // The dimensions before and after this one, in the order of memory.
        let (before, after) = (&self.shape[..dim], &self.shape[dim + 1..]);
        let (outer, inner) = match self.order {
            ArrayOrder::C => (before, after),
            ArrayOrder::Fortran => (after, before),
        };
        let (height, inner) = (outer.iter().product::<u64>(), inner.iter().product::<u64>());
        let within = || SliceError::WithinByte { dim, bits: self.dtype.bits() };
        let bytes = |count: u64| self.dtype.bytes(count * inner).ok_or_else(within);
        // Only the distance of rows must be whole bytes, so that of a single row is not checked.
        let pitch = if height == 1 { self.bytes() } else { bytes(self.shape[dim])? };
        let target_pitch = bytes(selected.shape[dim])?;
        let mut target_offset = 0;
        for range in ranges {
            let width = bytes(range.end - range.start)?;
            if width > 0 {
                let offset = bytes(range.start)?;
                let part = StridedPart { offset, pitch, width, height, target_offset, target_pitch };
                selected.parts.push(part.merged());
                target_offset += width;
            }
        }
        selected.bytes = target_pitch * height;
        Ok(selected)
    }
}
