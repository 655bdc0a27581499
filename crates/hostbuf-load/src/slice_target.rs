//! A tensor, or a slice of it, and the memory of a device for it.

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

    /// Returns the tensor in a table.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`].
    pub(crate) fn entry<'t>(&self, table: &'t TensorTable) -> Result<&'t TensorEntry, LoadError> {
        let tensors = table.tensors().len();
        table.get(&self.tensor).ok_or_else(|| LoadError::NoTensor { name: self.tensor.clone(), tensors })
    }

    /// Returns the ranges of the file that the slice consists of, each with its memory.
    ///
    /// # Errors
    /// [`LoadError::Target`] if the memory has another length than the slice, or the slice is that
    /// of a larger tensor.
    pub(crate) fn parts(&self, entry: &TensorEntry) -> Result<Vec<TransferPart>, LoadError> {
        let whole;
        let slice = match &self.slice {
            Some(slice) => slice,
            None => {
                whole = entry.whole();
                &whole
            }
        };
        let (needed, bytes) = (slice.bytes, self.target.bytes());
        let other_length = |needed| LoadError::Target { tensor: self.tensor.clone(), needed, bytes };
        if needed != bytes {
            return Err(other_length(needed));
        }
        let rows = slice.parts.iter().flat_map(StridedPart::rows);
        rows.map(|(row, at)| {
            let length = row.end - row.start;
            let target = self.target.part(at..at + length).map_err(|_| other_length(at + length))?;
            if row.end > entry.bytes() {
                return Err(other_length(entry.bytes()));
            }
            Ok(TransferPart::new(entry.range.start + row.start, target))
        })
        .collect()
    }
}
