//! Streams of a GPU that another library of the process owns, by their handles.

#![allow(unsafe_code, reason = "a stream is the driver's handle, as a number")]

use hostbuf_cuda::{BorrowedStream, CudaContext, CudaError, CudaEvent, Driver, StreamHandle};
use pyo3::prelude::*;

use crate::pool_error::gpu_raised;

/// Returns the stream of a handle.
///
/// # Errors
/// The driver's.
pub fn borrowed(context: &CudaContext, handle: usize) -> Result<BorrowedStream, CudaError> {
    // SAFETY: the package's documentation asks its caller for a stream that exists. The result is
    // dropped before the caller's method returns.
    unsafe { BorrowedStream::from_raw(context, StreamHandle(handle)) }
}

/// The completion of the work that a stream had at one time.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct GpuEvent {
    event: CudaEvent,
}

#[pymethods]
impl GpuEvent {
    /// Returns whether the work is complete. It does not wait.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        self.event.is_complete().map_err(|error| gpu_raised(py, &error))
    }
}

/// Returns an event that is complete with the work that the stream `handle` of a GPU has now.
#[pyfunction]
pub fn event_after(py: Python<'_>, handle: usize, gpu: u32) -> PyResult<GpuEvent> {
    let made = py.detach(|| {
        let context = CudaContext::retain(&Driver::find()?.gpu(gpu)?)?;
        CudaEvent::after(&borrowed(&context, handle)?)
    });
    Ok(GpuEvent { event: made.map_err(|error| gpu_raised(py, &error))? })
}
