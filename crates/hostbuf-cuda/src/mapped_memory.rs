//! GPU memory that is mapped to a reserved range.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;

use hostbuf_os::Bytes;

use crate::cuda_error::CudaError;
use crate::device_span::DeviceSpan;
use crate::driver_caller::DriverCaller;
use crate::functions::VirtualMemoryFunctions;
use crate::gpu_access::GpuAccess;
use crate::physical_memory::PhysicalMemory;
use crate::virtual_range::VirtualRange;

/// Memory of one or several GPUs that is mapped to a range of addresses.
///
/// Dropping it unmaps the memory, releases it and gives up the range, in this order. Work that uses
/// the memory must have ended before.
pub struct MappedMemory {
    // In the order in which they end.
    mappings: Vec<GpuMapping>,
    memory: Vec<PhysicalMemory>,
    range: VirtualRange,
}

/// The mapping of one allocation.
struct GpuMapping {
    caller: DriverCaller,
    span: DeviceSpan,
    functions: &'static VirtualMemoryFunctions,
}

impl VirtualRange {
    /// Maps `memory` to all of the range, and gives GPUs access to it. Without an entry for it, a
    /// GPU has no access, not even the one on which the memory lies.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] if the sizes differ, and the driver's. The range is given up and the
    /// memory released then; other processes and descriptors keep it.
    #[doc(alias = "cuMemMap")]
    pub fn map(self, memory: PhysicalMemory, access: &[GpuAccess]) -> Result<MappedMemory, CudaError> {
        self.map_all(vec![memory], access)
    }

    /// Maps several allocations to the range, one after the other. They may lie on different GPUs.
    ///
    /// # Errors
    /// As [`map`](VirtualRange::map).
    pub fn map_all(
        self,
        memory: Vec<PhysicalMemory>,
        access: &[GpuAccess],
    ) -> Result<MappedMemory, CudaError> {
        let bytes: usize = memory.iter().map(PhysicalMemory::bytes).sum();
        if self.bytes() != bytes {
            return Err(CudaError::invalid(format!(
                "mapping memory of {} to a range of {}: reserve a range of the memory's size",
                Bytes(bytes as u64),
                Bytes(self.bytes() as u64)
            )));
        }
        // The value owns each mapping before the next call can fail.
        let mut mapped = MappedMemory { mappings: Vec::new(), memory, range: self };
        let mut at = mapped.address();
        for piece in &mapped.memory {
            let span = DeviceSpan::new(at, piece.bytes());
            mapped.mappings.push(GpuMapping::new(piece, span)?);
            at += piece.bytes() as u64;
        }
        mapped.set_access(access)?;
        Ok(mapped)
    }
}

impl GpuMapping {
    /// Maps `memory` to a part of a range.
    fn new(memory: &PhysicalMemory, span: DeviceSpan) -> Result<GpuMapping, CudaError> {
        let caller = memory.caller().clone();
        let functions = caller.driver().functions().virtual_memory()?;
        let request = format!("cuMemMap of {} at {:#x}", Bytes(span.bytes() as u64), span.address());
        // SAFETY: the memory and the part of the range exist and are used for nothing else, since
        // the caller owns them.
        caller.call(request, || unsafe {
            (functions.map)(span.address(), span.bytes(), 0, memory.handle(), 0)
        })?;
        Ok(GpuMapping { caller, span, functions })
    }
}

impl MappedMemory {
    /// Changes the access of GPUs to all of the memory; the others keep theirs. A kernel that
    /// writes without the right to do so breaks its context.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(&self, access: &[GpuAccess]) -> Result<(), CudaError> {
        self.span().set_access(access)
    }

    /// Returns the GPU's address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.range.address()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.range.bytes()
    }

    /// Returns all of the memory as a span.
    #[must_use]
    pub fn span(&self) -> DeviceSpan {
        self.range.span()
    }

    /// Returns the allocation, for example to export it: that of the first address, if there are
    /// several.
    ///
    /// # Panics
    /// Never: a range has at least one byte.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        self.memory.first().expect("a range has memory")
    }

    /// Returns all allocations, in the order of their addresses.
    #[must_use]
    pub fn memories(&self) -> &[PhysicalMemory] {
        &self.memory
    }
}

impl fmt::Debug for MappedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedMemory").field("span", &self.span()).finish_non_exhaustive()
    }
}

impl Drop for GpuMapping {
    fn drop(&mut self) {
        let (address, bytes) = (self.span.address(), self.span.bytes());
        let object = format!("the mapping of {} at {address:#x}", Bytes(bytes as u64));
        // SAFETY: mapped by `new`, and unmapped once.
        self.caller.end(object, "cuMemUnmap", || unsafe { (self.functions.unmap)(address, bytes) });
    }
}
