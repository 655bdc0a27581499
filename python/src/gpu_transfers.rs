//! The start of transfers to and from memory of a GPU.

use hostbuf_cuda::{BorrowedStream, CudaError, CudaEvent};
use hostbuf_staging::{CudaDevice, DeviceTarget, Ring, Transfer};
use pyo3::prelude::*;

use crate::pool_error::gpu_raised;
use crate::pool_gpu_stream::borrowed;
use crate::transfer_direction::TransferDirection;
use crate::transfer_file::TransferFile;

/// The streams of a transfer, by their handles.
#[derive(Clone, Copy)]
pub struct TransferStreams {
    /// The stream whose work on the memory comes before the transfer.
    pub before: Option<usize>,
    /// The stream in whose order the transfer takes place: its later work waits for the transfer.
    pub order: Option<usize>,
}

/// Starts a transfer in the order of its streams.
///
/// # Errors
/// GpuError; UnsupportedError if the stream is being captured.
pub fn start(
    py: Python<'_>,
    ring: &Ring<CudaDevice>,
    file: &TransferFile,
    (direction, target, offset): (TransferDirection, DeviceTarget, u64),
    streams: TransferStreams,
) -> PyResult<Transfer> {
    let context = ring.device().stream().context();
    let stream = |handle: Option<usize>| handle.map(|handle| borrowed(context, handle)).transpose();
    let started = py.detach(|| -> Result<Option<Transfer>, CudaError> {
        let (before, order) = (stream(streams.before)?, stream(streams.order)?);
        match (order, before) {
            (Some(order), _) if order.is_capturing()? => Ok(None),
            (Some(order), before) => {
                wait(&order, before.as_ref())?;
                Ok(Some(direction.start_on(ring, file, &order, target, offset)))
            }
            (None, Some(before)) if !ring.try_wait_for(&before)? => {
                Ok(Some(direction.start_after(ring, file, &before, target, offset)))
            }
            (None, _) => Ok(Some(direction.start(ring, file, target, offset))),
        }
    });
    let started = started.map_err(|error| gpu_raised(py, &error))?;
    started.ok_or_else(|| {
        let what = String::from("a transfer in the order of a stream that is being captured");
        let why = "a graph cannot contain it: start it before the capture begins, or after it has ended";
        crate::error::raised(py, hostbuf::Error::Unsupported { what, why: why.into() })
    })
}

/// Makes a stream wait for the present work of another one.
fn wait(order: &BorrowedStream, before: Option<&BorrowedStream>) -> Result<(), CudaError> {
    match before {
        Some(before) if before.handle() != order.handle() => order.wait(&CudaEvent::after(before)?),
        _ => Ok(()),
    }
}
