//! Blocks on a GPU that a producer writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{ArrayLayout, GpuBlock, GpuPublishError, GpuPublishFailure as Failure, PoolError};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::pool_block::{ArrayFields, ContentFields, content_header, fields};
use crate::pool_dlpack::{TensorMemory, dlpack};
use crate::pool_error::{gpu_raised, invalid, pool_raised};
use crate::pool_gpu_stream::borrowed;

/// The use of a producer's block on a GPU.
enum GpuWriteState {
    Writing(Arc<GpuBlock>),
    Published,
    /// The block is kept if another library may have its address.
    Freed {
        _kept: Option<Arc<GpuBlock>>,
    },
}

impl GpuWriteState {
    /// Returns the error of a call for a block that is being written.
    fn refusal(&self) -> PyErr {
        PyValueError::new_err(match self {
            GpuWriteState::Writing(_) => "the block is being written",
            GpuWriteState::Published => "the block is published",
            GpuWriteState::Freed { .. } => "the block is freed",
        })
    }
}

/// A block on a GPU that its producer writes, until it is published or freed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct GpuBlockHandle {
    state: Mutex<GpuWriteState>,
    layout: ArrayLayout,
    is_shown: AtomicBool,
}

impl GpuBlockHandle {
    pub fn new(block: Arc<GpuBlock>, layout: ArrayLayout) -> GpuBlockHandle {
        let state = Mutex::new(GpuWriteState::Writing(block));
        GpuBlockHandle { state, layout, is_shown: AtomicBool::new(false) }
    }

    fn writable(&self, py: Python<'_>) -> PyResult<Arc<GpuBlock>> {
        let block = match &*self.state.lock().ignore_poison() {
            GpuWriteState::Writing(block) => block.clone(),
            other => return Err(other.refusal()),
        };
        match block.context().is_inherited() {
            false => Ok(block),
            true => Err(pool_raised(py, PoolError::Forked)),
        }
    }
}

#[pymethods]
impl GpuBlockHandle {
    /// Returns `writing`, `published` or `freed`.
    #[getter]
    fn state(&self) -> &'static str {
        match &*self.state.lock().ignore_poison() {
            GpuWriteState::Writing(_) => "writing",
            GpuWriteState::Published => "published",
            GpuWriteState::Freed { .. } => "freed",
        }
    }

    fn layout(&self) -> ArrayFields {
        fields(&self.layout)
    }

    fn device(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.writable(py)?.context().gpu().ordinal())
    }

    fn address(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.writable(py)?.address())
    }

    /// Returns the address for another library, which keeps the Python object: the block is not
    /// reused before the end of this object, unless it is published.
    fn show(&self, py: Python<'_>) -> PyResult<u64> {
        self.is_shown.store(true, Ordering::Relaxed);
        self.address(py)
    }

    fn dlpack<'py>(&self, py: Python<'py>, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
        let held = self.writable(py)?;
        let (address, gpu) = (held.address(), held.context().gpu().ordinal());
        let memory = TensorMemory::on_gpu(address, gpu, false, Box::new(held));
        dlpack(py, memory, &self.layout, versioned)
    }

    /// Publishes the block, after the work of the stream with the handle `stream` if there is one.
    fn publish<'py>(
        &self,
        py: Python<'py>,
        stream: Option<usize>,
        length: Option<u64>,
        frame: u64,
        captured_ns: Option<u64>,
        user_data: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        // The state is that of the block until then.
        drop(self.writable(py)?);
        let content = ContentFields { length, frame, captured_ns, user_data };
        let header = content_header(py, &self.layout, &content)?;
        let mut state = self.state.lock().ignore_poison();
        let held = match std::mem::replace(&mut *state, GpuWriteState::Published) {
            GpuWriteState::Writing(held) => held,
            // Another thread has published or freed it meanwhile.
            other => {
                let error = other.refusal();
                *state = other;
                return Err(error);
            }
        };
        let stream = match stream.map(|stream| borrowed(held.context(), stream)).transpose() {
            Ok(stream) => stream,
            Err(error) => {
                *state = GpuWriteState::Writing(held);
                return Err(gpu_raised(py, &error));
            }
        };
        let block = match Arc::try_unwrap(held) {
            Ok(held) => held,
            Err(held) => {
                let arrays = Arc::strong_count(&held) - 1;
                *state = GpuWriteState::Writing(held);
                return Err(PyBufferError::new_err(format!(
                    "the block cannot be published: {arrays} arrays or tensors of it exist, through which its readers' data could \
                     be overwritten: delete them (del tensor) first"
                )));
            }
        };
        match block.publish_with(header, stream.as_ref()) {
            Ok(token) => Ok(PyBytes::new(py, &token.to_bytes())),
            Err(GpuPublishError { reason, block, .. }) => {
                *state = GpuWriteState::Writing(Arc::new(block));
                Err(match reason {
                    Failure::Cuda(error) => gpu_raised(py, &error),
                    reason => invalid(py, format!("invalid content: {reason}")),
                })
            }
        }
    }

    /// Frees the block, unless it is published.
    fn free(&self) {
        let mut state = self.state.lock().ignore_poison();
        if let GpuWriteState::Writing(block) = &*state {
            let _kept = self.is_shown.load(Ordering::Relaxed).then(|| block.clone());
            *state = GpuWriteState::Freed { _kept };
        }
    }
}
