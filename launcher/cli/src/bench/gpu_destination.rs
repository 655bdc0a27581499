//! Memory of a GPU that the files are read into.

use std::sync::Arc;

use hostbuf_cuda::{CudaContext, CudaError, CudaGpu, DeviceMemory, Driver};
use hostbuf_staging::{CudaDevice, Ring, RingOptions};

use super::bench_error::BenchError;
use super::ring_destination::{RingDestination, memory_bytes};

impl RingDestination<CudaDevice> {
    /// Allocates memory of the GPU with this number.
    ///
    /// # Errors
    /// [`BenchError::Gpu`], including if there is no such GPU, and [`BenchError::Ring`].
    pub(super) fn on_gpu(
        number: u32,
        options: RingOptions,
    ) -> Result<RingDestination<CudaDevice>, BenchError> {
        let allocate = || -> Result<(CudaGpu, DeviceMemory), CudaError> {
            let gpu = Driver::find()?.gpu(number)?;
            let memory = DeviceMemory::new(&CudaContext::retain(&gpu)?, memory_bytes())?;
            Ok((gpu, memory))
        };
        let refused = |error: CudaError| BenchError::Gpu { number, why: error.to_string() };
        let (gpu, memory) = allocate().map_err(refused)?;
        let ring = Ring::for_gpu(&gpu, options)?;
        Ok(RingDestination::new(ring, Arc::new(memory)))
    }
}
