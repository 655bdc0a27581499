//! A tensor, or a slice of it, and the memory of a device for it.

use std::ops::Range;

use hostbuf_staging::{DeviceTarget, TransferPart};

use crate::error::LoadError;
use crate::slice::{StridedPart, TensorSlice};
use crate::table::{TensorEntry, TensorTable};

/// A tensor, or a slice of it, and the memory of a device for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SliceTarget {
    /// The name of the tensor.
    pub tensor: String,
    /// The slice; `None` for the whole tensor.
    pub slice: Option<TensorSlice>,
    /// The memory, with exactly the bytes of the slice.
    pub target: DeviceTarget,
}

impl SliceTarget {
    /// Makes the target of a whole tensor.
    pub fn new(tensor: impl Into<String>, target: DeviceTarget) -> SliceTarget {
        SliceTarget { tensor: tensor.into(), slice: None, target }
    }

    /// Sets the slice, which is one of [`TensorEntry::slice`] or [`TensorEntry::fused_slice`].
    #[must_use]
    pub fn slice(mut self, slice: TensorSlice) -> SliceTarget {
        self.slice = Some(slice);
        self
    }

    /// Returns the tensor in a table, and checks that the slice lies within it and has the length
    /// of the memory.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`]; [`LoadError::Target`] if the memory has another length than the
    /// slice, or the slice is that of a larger tensor.
    pub(crate) fn checked<'t>(&self, table: &'t TensorTable) -> Result<&'t TensorEntry, LoadError> {
        let tensors = table.tensors().len();
        let no_tensor = || LoadError::NoTensor { name: self.tensor.clone(), tensors };
        let entry = table.get(&self.tensor).ok_or_else(no_tensor)?;
        let bytes = self.target.bytes();
        let other_length = |needed| LoadError::Target { tensor: self.tensor.clone(), needed, bytes };
        let needed = self.slice.as_ref().map_or(entry.bytes(), |slice| slice.bytes);
        if needed != bytes {
            return Err(other_length(needed));
        }
        for part in self.slice.iter().flat_map(|slice| &slice.parts) {
            let (end, target_end) = part.ends();
            if end > entry.bytes() || target_end > bytes {
                return Err(other_length(if target_end > bytes { target_end } else { entry.bytes() }));
            }
        }
        Ok(entry)
    }

    /// Returns the parts of the slice of a tensor that was [checked](SliceTarget::checked). There
    /// is none if the slice is empty.
    pub(crate) fn strided_parts(&self, entry: &TensorEntry) -> impl Iterator<Item = StridedPart> + use<'_> {
        let whole = if self.slice.is_none() { StridedPart::whole(entry.bytes()) } else { None };
        let parts = self.slice.iter().flat_map(|slice| &slice.parts);
        whole.into_iter().chain(parts.copied())
    }

    /// Returns the rows of the slice of a tensor that was [checked](SliceTarget::checked): each
    /// range of its bytes, and the offset in the memory.
    pub(crate) fn rows(&self, entry: &TensorEntry) -> impl Iterator<Item = (Range<u64>, u64)> + use<'_> {
        let whole = self.slice.is_none().then(|| (0..entry.bytes(), 0));
        let parts = self.slice.iter().flat_map(|slice| &slice.parts);
        whole.into_iter().chain(parts.flat_map(StridedPart::rows))
    }

    /// Returns the ranges of the file that the slice of a tensor consists of, each with its memory.
    ///
    /// # Errors
    /// Those of [`checked`](SliceTarget::checked).
    pub(crate) fn parts(&self, entry: &TensorEntry) -> Result<Vec<TransferPart>, LoadError> {
        let bytes = self.target.bytes();
        let part = |(row, at): (Range<u64>, u64)| {
            let end = at + (row.end - row.start);
            let too_short = |_| LoadError::Target { tensor: self.tensor.clone(), needed: end, bytes };
            let target = self.target.part(at..end).map_err(too_short)?;
            Ok(TransferPart::new(entry.range.start + row.start, target))
        };
        self.rows(entry).map(part).collect()
    }
}
