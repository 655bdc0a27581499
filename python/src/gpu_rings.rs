//! The rings of GPUs, which stay until the process ends: files that are opened one after the other
//! use the same threads and the same registered memory.

use std::sync::{Arc, Mutex};

use hostbuf_cuda::{CudaContext, CudaError, CudaEvent, Driver};
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::{CudaDevice, Ring};
use pyo3::prelude::*;

use crate::pool_error::gpu_raised;
use crate::pool_gpu_stream::borrowed;
use crate::transfer_error::ring_raised;

type GpuRing = Arc<Ring<CudaDevice>>;

static GPUS: Mutex<Vec<(u32, GpuRing)>> = Mutex::new(Vec::new());

/// Returns the ring of the GPU with the number `gpu`. The first call loads the driver.
pub fn of_gpu(py: Python<'_>, gpu: u32) -> PyResult<GpuRing> {
    hold_around_fork!(GPUS: Vec<(u32, GpuRing)>);
    let known = || {
        let rings = GPUS.lock().ignore_poison();
        let found = rings.iter().find(|(number, _)| *number == gpu).map(|(_, ring)| ring.clone());
        found.filter(|ring| ring.is_usable())
    };
    if let Some(known) = py.detach(known) {
        return Ok(known);
    }
    let gpu_of_process = py.detach(|| Driver::find()?.gpu(gpu)).map_err(|error| gpu_raised(py, &error))?;
    let made = py.detach(|| {
        let ring = Ring::of_gpu(&gpu_of_process)?;
        let mut rings = GPUS.lock().ignore_poison();
        let (ended, mut kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *rings).into_iter().partition(|(number, _)| *number == gpu);
        kept.push((gpu, ring.clone()));
        *rings = kept;
        drop(rings);
        // A ring that has ended is dropped without the lock.
        drop(ended);
        Ok(ring)
    });
    made.map_err(|error| ring_raised(py, error))
}

/// Returns the handle of the stream in which the ring of a GPU copies.
#[pyfunction]
pub fn ring_stream(py: Python<'_>, gpu: u32) -> PyResult<usize> {
    Ok(of_gpu(py, gpu)?.device().stream().handle().0)
}

/// Lets the ring wait for the work that the stream `handle` has now.
pub fn wait_for_stream(py: Python<'_>, ring: &Ring<CudaDevice>, handle: usize) -> PyResult<()> {
    let stream = ring.device().stream();
    let context: &CudaContext = stream.context();
    let waits = py.detach(|| stream.wait(&CudaEvent::after(&borrowed(context, handle)?)?));
    waits.map_err(|error: CudaError| gpu_raised(py, &error))
}
