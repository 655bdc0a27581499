//! Blocks on a GPU that a process reads.

use std::sync::Mutex;

use hostbuf_cuda::CudaEvent;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{BlockHeader, GpuBlockRef, PoolError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::pool_block::{ArrayFields, HeaderNumbers, fields, numbers};
use crate::pool_dlpack::{TensorMemory, dlpack};
use crate::pool_error::{gpu_raised, pool_raised, ready_raised};
use crate::pool_gpu_stream::borrowed;

/// A hold on a published block on a GPU, until it is released.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct GpuBlockRefHandle {
    held: Mutex<Option<GpuBlockRef>>,
    header: BlockHeader,
}

impl GpuBlockRefHandle {
    pub fn new(held: GpuBlockRef) -> GpuBlockRefHandle {
        let header = *held.header();
        GpuBlockRefHandle { held: Mutex::new(Some(held)), header }
    }

    /// Returns a further hold.
    fn hold(&self, py: Python<'_>) -> PyResult<GpuBlockRef> {
        match &*self.held.lock().ignore_poison() {
            None => Err(PyValueError::new_err("the block is released")),
            Some(held) if held.context().is_inherited() => Err(pool_raised(py, PoolError::Forked)),
            Some(held) => Ok(held.clone()),
        }
    }
}

#[pymethods]
impl GpuBlockRefHandle {
    fn layout(&self) -> ArrayFields {
        fields(&self.header.layout)
    }

    fn numbers(&self) -> HeaderNumbers {
        numbers(&self.header)
    }

    fn user_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.header.user_data)
    }

    fn device(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.hold(py)?.context().gpu().ordinal())
    }

    fn address(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.hold(py)?.address())
    }

    /// Returns the reason why this process could write to the block, if it could.
    fn why_writable(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.hold(py)?.why_writable().map(str::to_owned))
    }

    /// Returns a capsule of DLPack, with a hold of its own.
    fn dlpack<'py>(&self, py: Python<'py>, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
        let held = self.hold(py)?;
        let (address, gpu) = (held.address(), held.context().gpu().ordinal());
        let memory = TensorMemory::on_gpu(address, gpu, true, Box::new(held));
        dlpack(py, memory, &self.header.layout, versioned)
    }

    /// Makes the stream with a handle wait until the content is complete.
    fn wait_ready(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let held = self.hold(py)?;
        let stream = borrowed(held.context(), stream).map_err(|error| gpu_raised(py, &error))?;
        py.detach(|| held.wait_ready(&stream)).map_err(|error| ready_raised(py, &error))
    }

    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self.hold(py)?;
        py.detach(|| held.is_ready()).map_err(|error| ready_raised(py, &error))
    }

    /// Releases the hold when the work is complete that the stream with a handle has now.
    fn release_after(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let context = self.hold(py)?.context().clone();
        let event = borrowed(&context, stream).and_then(|stream| CudaEvent::after(&stream));
        let event = event.map_err(|error| gpu_raised(py, &error))?;
        let held = self.held.lock().ignore_poison().take();
        let Some(held) = held else {
            return Err(PyValueError::new_err("the block is released"));
        };
        held.release_after(event);
        Ok(())
    }

    /// Returns a further hold.
    fn add_hold(&self, py: Python<'_>) -> PyResult<GpuBlockRefHandle> {
        Ok(GpuBlockRefHandle::new(self.hold(py)?))
    }

    #[getter]
    fn released(&self) -> bool {
        self.held.lock().ignore_poison().is_none()
    }

    fn release(&self) {
        drop(self.held.lock().ignore_poison().take());
    }
}
