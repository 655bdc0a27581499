//! Copies of a load to a GPU, window by window.

#![allow(unsafe_code, reason = "starts copies of the GPU from a buffer that outlives them")]

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use hostbuf::HostBuffer;
use hostbuf::register::{Access, CudaHost, Registration};
use hostbuf_cuda::{CudaContext, CudaError, CudaEvent, CudaStream, DeviceMemory, Driver};

use crate::copy_times::CopyTimes;
use crate::counters::LoadCounters;
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
    missing: BTreeSet<u64>,
    /// The copies that have not ended, as far as this knows: their events and bytes.
    running: VecDeque<(CudaEvent, u64)>,
    times: CopyTimes,
    /// The load, once it has begun.
    progress: Option<LoadProgress>,
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
        Ok(GpuCopy {
            gpu,
            stream,
            memory,
            region_bytes,
            window_bytes,
            missing,
            running: VecDeque::new(),
            times: CopyTimes::default(),
            progress: None,
            _registration: registration,
        })
    }

    /// Starts to copy the windows that have become ready since the last call. It does not wait for
    /// the GPU.
    ///
    /// # Errors
    /// [`LoadError::Job`] of the driver.
    pub fn start_ready(&mut self, progress: &LoadProgress) -> Result<(), LoadError> {
        let gpu = self.gpu;
        self.progress.get_or_insert_with(|| progress.clone());
        self.start(progress).map_err(|error| of_gpu(gpu, &error))
    }

    fn start(&mut self, progress: &LoadProgress) -> Result<(), CudaError> {
        let is_running = self.is_running()?;
        self.times.observe(is_running, progress);
        let missing = self.missing.iter().copied();
        let ready: Vec<u64> = missing.filter(|&window| progress.is_window_ready(window)).collect();
        for &window in &ready {
            let start = window * self.window_bytes;
            let end = (start + self.window_bytes).min(self.region_bytes);
            let Some(bytes) = progress.bytes(start..end) else { continue };
            // SAFETY: nothing writes to a window that is ready. The registration keeps the buffer,
            // and is dropped after the stream has been waited for. The window has a place of its
            // own on the GPU.
            unsafe { self.stream.copy_to_device(bytes, self.memory.address() + start) }?;
            self.missing.remove(&window);
            self.running.push_back((CudaEvent::after(&self.stream)?, end - start));
        }
        // The driver may copy while it is called, so that the next windows are ready meanwhile.
        let is_behind = progress.is_any_ready(self.missing.iter());
        self.times.observe(!ready.is_empty() && is_behind, progress);
        Ok(())
    }

    /// Returns whether the GPU has copies to do. Forgets those that have ended.
    fn is_running(&mut self) -> Result<bool, CudaError> {
        while let Some((event, bytes)) = self.running.front() {
            if !event.is_complete()? {
                return Ok(true);
            }
            self.times.bytes_copied += bytes;
            self.running.pop_front();
        }
        Ok(false)
    }

    /// Waits until the GPU has the next one of the windows whose copies were started. Returns false
    /// if it has all of them.
    ///
    /// # Errors
    /// [`LoadError::Job`] of the driver.
    pub fn wait_for_window(&mut self) -> Result<bool, LoadError> {
        let gpu = self.gpu;
        self.wait_for_copy().map_err(|error| of_gpu(gpu, &error))
    }

    fn wait_for_copy(&mut self) -> Result<bool, CudaError> {
        let is_running = self.is_running()?;
        if let Some((event, bytes)) = self.running.pop_front() {
            event.synchronize()?;
            self.times.bytes_copied += bytes;
        }
        if let Some(progress) = &self.progress {
            self.times.observe(is_running, progress);
        }
        Ok(is_running)
    }

    /// Waits until the GPU has all windows that were ready. Returns whether these are all windows
    /// of the load.
    ///
    /// # Errors
    /// [`LoadError::Job`] of the driver.
    pub fn wait(&mut self) -> Result<bool, LoadError> {
        while self.wait_for_window()? {}
        self.stream.synchronize().map_err(|error| of_gpu(self.gpu, &error))?;
        Ok(self.missing.is_empty())
    }

    /// Returns the counters of the load, with those of the copies. All are 0 before the first call
    /// of [`start_ready`](GpuCopy::start_ready).
    #[must_use]
    pub fn counters(&self) -> LoadCounters {
        self.progress.as_ref().map(|progress| self.times.complete(progress.counters())).unwrap_or_default()
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
        if let Err(error) = self.stream.synchronize() {
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
