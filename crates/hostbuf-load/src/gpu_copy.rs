//! Copies of a load to a GPU, window by window.

#![allow(unsafe_code, reason = "starts copies of the GPU from a buffer that outlives them")]

use std::fmt;
use std::sync::Arc;

use hostbuf::HostBuffer;
use hostbuf::register::{Access, CudaHost, Registration};
use hostbuf_cuda::{CudaContext, CudaError, CudaStream, DeviceMemory, Driver};

use crate::error::LoadError;
use crate::load::LoadOptions;
use crate::progress::LoadProgress;
use crate::table::{TensorEntry, TensorTable};

/// Memory of a GPU that gets the bytes of a load, each window as soon as it has been read. So the
/// time until all tensors are on the GPU is the longer one of reading and copying, not their sum.
///
/// The tensors lie in the memory as in the buffer, at
/// [`region_offset`](TensorTable::region_offset).
pub struct GpuCopy {
    gpu: u32,
    stream: CudaStream,
    memory: DeviceMemory,
    region_bytes: u64,
    window_bytes: u64,
    /// The windows that were not copied yet.
    missing: Vec<u64>,
    /// Dropped before the buffer, which it keeps mapped.
    _registration: Registration<CudaHost>,
}

impl GpuCopy {
    /// Registers a buffer with the GPU of this number, and allocates memory there for a load of the
    /// files of `table` with `options`.
    ///
    /// # Errors
    /// [`LoadError::Option`], and [`LoadError::Job`] of the registration and of the driver.
    pub fn new(
        gpu: u32,
        buffer: &HostBuffer,
        table: &TensorTable,
        options: &LoadOptions,
    ) -> Result<GpuCopy, LoadError> {
        options.check()?;
        let (region_bytes, window_bytes) = (table.region_bytes(), options.window_bytes);
        let registrar = CudaHost::new(gpu).map_err(hostbuf::Error::from)?;
        let registration = buffer.register(&Arc::new(registrar), .., Access::READ)?;
        let made = || -> Result<(CudaStream, DeviceMemory), CudaError> {
            let context = CudaContext::retain(&Driver::find()?.gpu(gpu)?)?;
            let memory = DeviceMemory::new(&context, region_bytes.max(1) as usize)?;
            Ok((CudaStream::new(&context)?, memory))
        };
        let (stream, memory) = made().map_err(|error| of_gpu(gpu, &error))?;
        let missing = (0..region_bytes.div_ceil(window_bytes)).collect();
        Ok(GpuCopy { gpu, stream, memory, region_bytes, window_bytes, missing, _registration: registration })
    }

    /// Starts to copy the windows that have become ready since the last call. It does not wait for
    /// the GPU.
    ///
    /// # Errors
    /// [`LoadError::Job`] of the driver.
    pub fn start_ready(&mut self, progress: &LoadProgress) -> Result<(), LoadError> {
        let mut failed = None;
        let (stream, memory) = (&self.stream, &self.memory);
        self.missing.retain(|&window| {
            let start = window * self.window_bytes;
            let end = (start + self.window_bytes).min(self.region_bytes);
            let ready = progress.bytes(start..end).filter(|_| failed.is_none());
            let Some(bytes) = ready else { return true };
            // SAFETY: nothing writes to a window that is ready. The registration keeps the buffer,
            // and is dropped after the stream has been waited for. The window has a place of its
            // own on the GPU.
            let copied = unsafe { stream.copy_to_device(bytes, memory.address() + start) };
            failed = copied.err();
            false
        });
        failed.map_or(Ok(()), |error| Err(of_gpu(self.gpu, &error)))
    }

    /// Waits until the GPU has all windows that were ready. Returns whether these are all windows
    /// of the load.
    ///
    /// # Errors
    /// [`LoadError::Job`] of the driver.
    pub fn wait(&self) -> Result<bool, LoadError> {
        self.stream.synchronize().map_err(|error| of_gpu(self.gpu, &error))?;
        Ok(self.missing.is_empty())
    }

    /// Returns the number of the GPU.
    #[must_use]
    pub fn gpu(&self) -> u32 {
        self.gpu
    }

    /// Returns the number of bytes of the load, with the headers of the files and the gaps between
    /// them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the GPU's address of the first byte of a tensor of the table.
    ///
    /// # Panics
    /// As [`TensorTable::region_offset`], if the tensor is one of another table.
    #[must_use]
    pub fn address(&self, table: &TensorTable, tensor: &TensorEntry) -> u64 {
        self.memory.address() + table.region_offset(tensor)
    }
}

impl Drop for GpuCopy {
    fn drop(&mut self) {
        // The GPU may still read the buffer.
        if let Err(error) = self.wait() {
            tracing::error!(%error, "cannot wait for the copies of a load to the GPU");
        }
    }
}

impl fmt::Debug for GpuCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GpuCopy { gpu, region_bytes, .. } = self;
        f.debug_struct("GpuCopy").field("gpu", gpu).field("bytes", region_bytes).finish_non_exhaustive()
    }
}

fn of_gpu(gpu: u32, error: &CudaError) -> LoadError {
    let what = format!("GPU {gpu}: {error}");
    LoadError::Job(hostbuf::Error::Invalid { what })
}
