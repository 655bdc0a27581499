//! Copies of a load to a GPU, window by window.

#![allow(unsafe_code, reason = "starts copies of the GPU from a buffer that outlives them")]

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostbuf::HostBuffer;
use hostbuf::register::{Access, CudaHost, Registration};
use hostbuf_cuda::{CudaContext, CudaError, CudaStream, DeviceMemory, Driver};
use hostbuf_load::{LoadError, LoadOptions, LoadProgress, TensorTable};
use hostbuf_os::poison::IgnorePoison;

/// Memory of a GPU that gets the bytes of a load, each window as soon as it has been read.
pub(super) struct GpuCopy {
    number: u32,
    stream: CudaStream,
    memory: DeviceMemory,
    region_bytes: u64,
    /// The windows that were not copied yet.
    missing: Mutex<Vec<u64>>,
    /// Ends before the buffer does.
    _registration: Registration<CudaHost>,
}

impl GpuCopy {
    /// Registers a buffer with a GPU, and allocates memory there.
    ///
    /// # Errors
    /// Those of the registration and of the driver.
    pub(super) fn new(number: u32, buffer: &HostBuffer, table: &TensorTable) -> Result<GpuCopy, LoadError> {
        let region_bytes = table.region_bytes();
        let registrar = CudaHost::new(number).map_err(hostbuf::Error::from)?;
        let registration = buffer.register(&Arc::new(registrar), .., Access::READ)?;
        let made = || -> Result<(CudaStream, DeviceMemory), CudaError> {
            let context = CudaContext::retain(&Driver::find()?.gpu(number)?)?;
            let memory = DeviceMemory::new(&context, region_bytes.max(1) as usize)?;
            Ok((CudaStream::new(&context)?, memory))
        };
        let (stream, memory) = made().map_err(|error| of_gpu(number, &error))?;
        let windows = region_bytes.div_ceil(LoadOptions::WINDOW_BYTES);
        let missing = Mutex::new((0..windows).collect());
        Ok(GpuCopy { number, stream, memory, region_bytes, missing, _registration: registration })
    }

    /// Copies windows as they become ready, until the sender is dropped, and waits for the copies.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn follow(&self, ready: &Receiver<LoadProgress>) -> Result<(), LoadError> {
        let mut copied = Ok(());
        for progress in ready {
            if copied.is_ok() {
                copied = self.copy_ready(&progress);
            }
        }
        // Also after an error: the memory is in use until then.
        let ended = self.stream.synchronize();
        copied.and(ended).map_err(|error| of_gpu(self.number, &error))
    }

    fn copy_ready(&self, progress: &LoadProgress) -> Result<(), CudaError> {
        let mut missing = self.missing.lock().ignore_poison();
        let mut failed = None;
        missing.retain(|&window| {
            let start = window * LoadOptions::WINDOW_BYTES;
            let end = (start + LoadOptions::WINDOW_BYTES).min(self.region_bytes);
            let Some(bytes) = progress.bytes(start..end).filter(|_| failed.is_none()) else { return true };
            // SAFETY: nothing writes to a window that is ready, and the registration keeps the
            // buffer until the stream has been waited for; the window has a place of its own.
            let copied = unsafe { self.stream.copy_to_device(bytes, self.memory.address() + start) };
            failed = copied.err();
            false
        });
        failed.map_or(Ok(()), Err)
    }

    /// Returns the part of a line about the copies, which have taken `elapsed` with the load.
    pub(super) fn line(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64();
        let rate = self.region_bytes as f64 / seconds / 1e9;
        format!("on GPU {} after {seconds:.3} s: {rate:.2} GB/s", self.number)
    }
}

fn of_gpu(number: u32, error: &CudaError) -> LoadError {
    let what = format!("GPU {number}: {error}");
    LoadError::Job(hostbuf::Error::Invalid { what })
}
