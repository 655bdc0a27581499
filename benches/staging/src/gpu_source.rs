//! Memory of a GPU, as one end of rings beside a disk.

#![allow(unsafe_code, reason = "starts copies of the GPU, and waits for them")]

use std::error::Error;
use std::sync::Arc;

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, DeviceSpan, PageLockedMemory};
use hostbuf_staging::{CudaDevice, DeviceTarget, Ring, RingOptions};

use crate::source_memory::SourceMemory;

/// Memory of a GPU, from which rings write and to which they read.
pub(crate) struct GpuSource {
    context: CudaContext,
    stream: CudaStream,
    memory: Arc<DeviceMemory>,
}

impl GpuSource {
    /// Allocates `bytes` of the memory of the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(context: &CudaContext, bytes: usize) -> Result<GpuSource, Box<dyn Error>> {
        let memory = Arc::new(DeviceMemory::new(context, bytes)?);
        Ok(GpuSource { context: context.clone(), stream: CudaStream::new(context)?, memory })
    }

    /// Returns a part of the memory.
    fn part(&self, offset: usize, bytes: usize) -> DeviceSpan {
        assert!(offset + bytes <= self.memory.bytes(), "a part lies within the memory");
        DeviceSpan::new(self.memory.address() + offset as u64, bytes)
    }
}

impl SourceMemory for GpuSource {
    type Device = CudaDevice;

    fn ring(&self, options: RingOptions) -> Result<Ring<CudaDevice>, Box<dyn Error>> {
        let memory = PageLockedMemory::new(&self.context, options.bytes()?)?;
        Ok(Ring::new(CudaDevice::new(&self.context)?, options, memory)?)
    }

    fn target(&self) -> DeviceTarget {
        DeviceTarget::new(self.memory.clone())
    }

    fn store(&mut self, content: &[u8], offset: usize) -> Result<(), Box<dyn Error>> {
        let to = self.part(offset, content.len()).address();
        // SAFETY: both ranges exist until the stream has been waited for, and no transfer is on
        // its way.
        unsafe { self.stream.copy_to_device(content, to) }?;
        Ok(self.stream.synchronize()?)
    }

    fn load(&self, into: &mut [u8], offset: usize) -> Result<(), Box<dyn Error>> {
        let from = self.part(offset, into.len());
        // SAFETY: as above.
        unsafe { self.stream.copy_to_host(from, into) }?;
        Ok(self.stream.synchronize()?)
    }
}
