//! The GPUs that a process sees.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::c_int;

use hostbuf_os::process;

use crate::cuda_error::CudaError;
use crate::cuda_gpu::CudaGpu;
use crate::driver::Driver;
use crate::gpu_uuid::GpuUuid;

impl Driver {
    /// Returns the GPU with this number, counted from 0 in CUDA's order (`CUDA_VISIBLE_DEVICES`,
    /// `CUDA_DEVICE_ORDER`).
    ///
    /// # Errors
    /// [`CudaError::NoGpu`], and the driver's.
    pub fn gpu(self, ordinal: u32) -> Result<CudaGpu, CudaError> {
        let visible = self.gpu_count()?;
        let no_gpu =
            || CudaError::NoGpu { request: format!("GPU {ordinal}"), visible, host: process::host_name() };
        let number = c_int::try_from(ordinal).map_err(|_| no_gpu())?;
        if ordinal >= visible {
            return Err(no_gpu());
        }
        let mut device = 0;
        // SAFETY: the device exists, and `device` is a local variable.
        let answer = unsafe { (self.functions().basic.device)(&raw mut device, number) };
        self.checked(answer, format_args!("cuDeviceGet of GPU {ordinal}"))?;
        Ok(CudaGpu::new(self, ordinal, device))
    }

    /// Returns the GPUs that this process sees, in CUDA's order.
    ///
    /// # Errors
    /// The driver's.
    pub fn gpus(self) -> Result<Vec<CudaGpu>, CudaError> {
        (0..self.gpu_count()?).map(|ordinal| self.gpu(ordinal)).collect()
    }

    /// Returns the GPU with this UUID. Processes name a GPU to each other by its UUID, since
    /// `CUDA_VISIBLE_DEVICES` gives it a different number in each of them.
    ///
    /// # Errors
    /// [`CudaError::NoGpu`] if the process does not see it, and the driver's.
    pub fn gpu_with_uuid(self, uuid: &GpuUuid) -> Result<CudaGpu, CudaError> {
        let gpus = self.gpus()?;
        let visible = gpus.len() as u32;
        for gpu in gpus {
            if gpu.uuid()? == *uuid {
                return Ok(gpu);
            }
        }
        Err(CudaError::NoGpu { request: format!("GPU {uuid}"), visible, host: process::host_name() })
    }
}
