//! The rings of GPUs, which stay until the process ends: files that are opened one after the other
//! use the same threads and the same registered memory.

use std::sync::{Arc, Mutex};

use hostbuf_cuda::{CudaStream, Driver};
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::{CudaDevice, Ring, RingError};
use pyo3::prelude::*;

use crate::pool_error::gpu_raised;
use crate::transfer_error::ring_raised;

/// The ring of a GPU.
#[derive(Clone)]
pub struct GpuRing {
    pub ring: Arc<Ring<CudaDevice>>,
    /// The stream that libraries let wait for their work on an array. It is not that of the ring,
    /// since their work may wait for a transfer of the ring.
    array_stream: Arc<CudaStream>,
}

static GPUS: Mutex<Vec<(u32, GpuRing)>> = Mutex::new(Vec::new());

/// Returns the ring of the GPU with the number `gpu`. The first call loads the driver.
pub fn of_gpu(py: Python<'_>, gpu: u32) -> PyResult<GpuRing> {
    hold_around_fork!(GPUS: Vec<(u32, GpuRing)>);
    let known = || {
        let rings = GPUS.lock().ignore_poison();
        let found = rings.iter().find(|(number, _)| *number == gpu).map(|(_, ring)| ring.clone());
        found.filter(|known| known.ring.is_usable())
    };
    if let Some(known) = py.detach(known) {
        return Ok(known);
    }
    let gpu_of_process = py.detach(|| Driver::find()?.gpu(gpu)).map_err(|error| gpu_raised(py, &error))?;
    let ring =
        py.detach(|| Ring::of_gpu(&gpu_of_process)).map_err(|error: RingError| ring_raised(py, error))?;
    let made = py.detach(|| CudaStream::new(ring.device().stream().context()));
    let array_stream = Arc::new(made.map_err(|error| gpu_raised(py, &error))?);
    let own = GpuRing { ring, array_stream };
    Ok(py.detach(|| {
        let mut rings = GPUS.lock().ignore_poison();
        let (of_gpu, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *rings).into_iter().partition(|(number, _)| *number == gpu);
        *rings = kept;
        // Another thread may have made one meanwhile, and may use its stream.
        let usable = of_gpu.iter().find(|(_, known)| known.ring.is_usable());
        let kept = usable.map_or(own, |(_, known)| known.clone());
        rings.push((gpu, kept.clone()));
        drop(rings);
        // A ring that has ended is dropped without the lock.
        drop(of_gpu);
        kept
    }))
}

/// Returns the handle of the stream that libraries let wait for their work on an array, before a
/// transfer of it. It stays until the ring of the GPU has ended.
#[pyfunction]
pub fn array_stream(py: Python<'_>, gpu: u32) -> PyResult<usize> {
    Ok(of_gpu(py, gpu)?.array_stream.handle().0)
}
