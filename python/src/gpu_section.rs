//! GPU sections of a buffer.

use hostbuf::{GpuSection, Proof};
use pyo3::prelude::*;

use crate::comm::RankGroup;
use crate::error::{outside, raised};
use crate::handle::BufferHandle;

/// A GPU section, which keeps the buffer.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct GpuSectionHandle {
    section: GpuSection,
}

#[pymethods]
impl GpuSectionHandle {
    fn name(&self) -> &str {
        self.section.name()
    }

    fn address(&self) -> u64 {
        self.section.address()
    }

    /// Returns the number of bytes.
    fn size(&self) -> usize {
        self.section.len()
    }

    /// Returns the number of the GPU and the bytes of each piece.
    fn pieces(&self) -> Vec<(u32, u64)> {
        self.section.pieces().iter().map(|piece| (piece.gpu, piece.length)).collect()
    }

    fn frozen(&self, py: Python<'_>) -> PyResult<bool> {
        self.section.is_frozen().map_err(|error| raised(py, error))
    }

    /// Freezes the section. Returns the reason why it is not sealed.
    fn freeze(&self, py: Python<'_>, comm: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        let proof = RankGroup::of(comm)?.outside(py, |ranks| self.section.freeze(ranks))?;
        Ok(match proof {
            Proof::Sealed => None,
            Proof::Weaker { why } => Some(why),
            other => Some(format!("{other:?}")),
        })
    }
}

/// Returns the section of a buffer with the name `name`.
#[pyfunction]
pub fn gpu_section(py: Python<'_>, handle: &BufferHandle, name: &str) -> PyResult<GpuSectionHandle> {
    let buffer = handle.buffer()?;
    Ok(GpuSectionHandle { section: outside(py, || buffer.gpu_section(name))? })
}
