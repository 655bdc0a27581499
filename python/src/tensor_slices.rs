//! Slices of the tensors that were loaded into a buffer.

use hostbuf_load::{FusedPart, LoadError, StridedPart, TensorSlice, Tensors};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::load_error::load_raised;

/// The slices of the tensors that were loaded into a buffer.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct TensorSlices(pub Tensors);

/// Rows of bytes: the offset of the first one in the tensor, the distance of the rows there, their
/// length and their number, and the offset and the distance in the slice.
type PartFields = (u64, u64, u64, u64, u64, u64);

/// A slice: its shape, its number of bytes, and its parts.
type SliceFields = (Py<PyTuple>, u64, Vec<PartFields>);

fn slice_fields(py: Python<'_>, slice: Result<TensorSlice, LoadError>) -> PyResult<SliceFields> {
    let slice = slice.map_err(|error| load_raised(py, error))?;
    let fields = |part: &StridedPart| {
        (part.offset, part.pitch, part.width, part.height, part.target_offset, part.target_pitch)
    };
    let shape = PyTuple::new(py, &slice.shape)?.unbind();
    Ok((shape, slice.bytes, slice.parts.iter().map(fields).collect()))
}

#[pymethods]
impl TensorSlices {
    /// Describes the part of a rank along a dimension.
    fn slice(
        &self,
        py: Python<'_>,
        name: &str,
        dim: usize,
        rank: usize,
        ranks: usize,
    ) -> PyResult<SliceFields> {
        slice_fields(py, self.0.slice(name, dim, rank, ranks))
    }

    /// Describes the shares of a rank of fused parts. A part has the number of its elements along
    /// the dimension, and the number of its shares, if that is not the number of ranks.
    fn fused_slice(
        &self,
        py: Python<'_>,
        name: &str,
        dim: usize,
        parts: Vec<(u64, Option<usize>)>,
        rank: usize,
        ranks: usize,
    ) -> PyResult<SliceFields> {
        let part = |(size, shares): (u64, Option<usize>)| {
            let part = FusedPart::new(size);
            shares.map_or(part, |shares| part.shares(shares))
        };
        let parts: Vec<FusedPart> = parts.into_iter().map(part).collect();
        slice_fields(py, self.0.fused_slice(name, dim, &parts, rank, ranks))
    }
}
