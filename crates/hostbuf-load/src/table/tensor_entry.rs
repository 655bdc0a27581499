//! The description of one tensor.

use std::ops::Range;

use super::dtype::Dtype;

/// The order of the elements of a tensor in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// Exhaustive: the two orders that a contiguous array can have in numpy.
pub enum ArrayOrder {
    /// Row-major: the last dimension is contiguous.
    #[default]
    C,
    /// Column-major: the first dimension is contiguous.
    Fortran,
}

/// The order of the bytes of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// Exhaustive: no other order exists in files.
pub enum ByteOrder {
    /// The least significant byte is first.
    #[default]
    Little,
    /// The most significant byte is first. hostbuf does not convert: the reader does.
    Big,
}

/// The description of one tensor: its type, its shape, and its place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorEntry {
    /// The name, which differs from those of all other tensors of the table.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The number of elements in each dimension. A scalar has no dimension.
    pub shape: Vec<u64>,
    /// The order of the elements.
    pub order: ArrayOrder,
    /// The order of the bytes of an element.
    pub byte_order: ByteOrder,
    /// The index of the file in [`TensorTable::files`](crate::TensorTable::files).
    pub file: usize,
    /// The bytes of the tensor in its file.
    pub range: Range<u64>,
}

impl TensorEntry {
    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns whether the shape and the type need exactly the bytes of the range.
    pub(crate) fn is_consistent(&self) -> bool {
        let elements = self.shape.iter().try_fold(1u64, |product, &count| product.checked_mul(count));
        let needed = elements.and_then(|elements| self.dtype.bytes(elements));
        needed.is_some() && self.range.end.checked_sub(self.range.start) == needed
    }
}
