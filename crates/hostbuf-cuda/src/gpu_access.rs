//! Access of a GPU to mapped memory.

use cudarc::driver::sys;

use crate::cuda_gpu::CudaGpu;
use crate::physical_memory::location;

/// The access of a GPU to mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuAccess {
    gpu: CudaGpu,
    writes: bool,
}

impl GpuAccess {
    /// Lets `gpu` read and write.
    #[must_use]
    pub fn read_write(gpu: &CudaGpu) -> GpuAccess {
        GpuAccess { gpu: *gpu, writes: true }
    }

    /// Lets `gpu` read. Not every driver supports it.
    #[must_use]
    pub fn read_only(gpu: &CudaGpu) -> GpuAccess {
        GpuAccess { gpu: *gpu, writes: false }
    }

    /// Returns the GPU.
    pub(crate) fn gpu(&self) -> &CudaGpu {
        &self.gpu
    }

    /// Returns the driver's description.
    pub(crate) fn descriptor(self) -> sys::CUmemAccessDesc {
        let flags = if self.writes {
            sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ
        };
        sys::CUmemAccessDesc { location: location(self.gpu.device()), flags }
    }
}
