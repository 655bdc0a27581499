//! Ordinary memory from which rings write as from a GPU.

#![allow(unsafe_code, reason = "accesses the memory of a simulated device between transfers")]

use std::error::Error;
use std::slice;
use std::sync::Arc;

use hostbuf_staging::{
    DeviceBuffer, DeviceTarget, HostMemory, Ring, RingMemory, RingOptions, SimulatedDevice,
};

use crate::source_memory::SourceMemory;

/// The memory of a simulated device, which a thread copies to the slots of a ring.
pub(crate) struct SimulatedSource {
    device: SimulatedDevice,
    memory: Arc<SourceRange>,
}

/// The memory as a part of a transfer. Only the device accesses it meanwhile.
struct SourceRange(HostMemory);

// SAFETY: the memory stays as long as the object.
unsafe impl DeviceBuffer for SourceRange {
    fn address(&self) -> u64 {
        self.0.address().as_ptr() as u64
    }

    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }
}

impl SimulatedSource {
    /// Allocates `bytes` of zeros.
    pub(crate) fn new(bytes: usize) -> SimulatedSource {
        let memory = Arc::new(SourceRange(HostMemory::new(bytes)));
        SimulatedSource { device: SimulatedDevice::new(), memory }
    }
}

impl SourceMemory for SimulatedSource {
    type Device = SimulatedDevice;

    fn ring(&self, options: RingOptions) -> Result<Ring<SimulatedDevice>, Box<dyn Error>> {
        Ok(Ring::new(self.device.clone(), options, HostMemory::new(options.bytes()?))?)
    }

    fn target(&self) -> DeviceTarget {
        DeviceTarget::new(self.memory.clone())
    }

    fn store(&mut self, content: &[u8], offset: usize) -> Result<(), Box<dyn Error>> {
        let memory = self.memory.0.address().as_ptr();
        // SAFETY: all transfers have ended, so this is the only user of the memory.
        let memory = unsafe { slice::from_raw_parts_mut(memory, self.memory.0.bytes()) };
        memory[offset..][..content.len()].copy_from_slice(content);
        Ok(())
    }

    fn load(&self, into: &mut [u8], offset: usize) -> Result<(), Box<dyn Error>> {
        let memory = self.memory.0.address().as_ptr();
        // SAFETY: as above, and nothing writes meanwhile.
        let memory = unsafe { slice::from_raw_parts(memory, self.memory.0.bytes()) };
        into.copy_from_slice(&memory[offset..][..into.len()]);
        Ok(())
    }
}
