//! Memory of a GPU that is mapped to a reserved range.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;

use hostbuf_os::Bytes;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::device_span::DeviceSpan;
use crate::functions::VirtualMemoryFunctions;
use crate::gpu_access::GpuAccess;
use crate::physical_memory::PhysicalMemory;
use crate::virtual_range::VirtualRange;

/// Memory of a GPU that is mapped to a range of addresses.
///
/// Dropping it unmaps the memory, releases it and gives up the range, in this order. Work that uses
/// the memory must have ended before.
pub struct MappedMemory {
    mapping: GpuMapping,
    // In the order in which they end, after the mapping.
    memory: PhysicalMemory,
    _range: VirtualRange,
}

/// The mapping alone.
struct GpuMapping {
    context: CudaContext,
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
        let (context, span) = (memory.context().clone(), self.span());
        let functions = context.driver().functions().virtual_memory()?;
        if self.bytes() != memory.bytes() {
            return Err(CudaError::invalid(format!(
                "mapping memory of {} to a range of {}: reserve a range of the memory's size",
                Bytes(memory.bytes() as u64),
                Bytes(self.bytes() as u64)
            )));
        }
        let request = format!("cuMemMap of {} at {:#x}", Bytes(span.bytes() as u64), span.address());
        // SAFETY: the range and the memory exist and are used for nothing else, since this function
        // owns them.
        context.call(request, || unsafe {
            (functions.map)(span.address(), span.bytes(), 0, memory.handle(), 0)
        })?;
        // The value owns the mapping before the next call can fail.
        let mapping = GpuMapping { context, span, functions };
        let mapped = MappedMemory { mapping, memory, _range: self };
        mapped.allow(access)?;
        Ok(mapped)
    }
}

impl MappedMemory {
    fn allow(&self, access: &[GpuAccess]) -> Result<(), CudaError> {
        let descriptors: Vec<_> = access.iter().map(|one| one.descriptor()).collect();
        if descriptors.is_empty() {
            return Ok(());
        }
        let GpuMapping { context, span, functions } = &self.mapping;
        // SAFETY: all of the range is mapped, and `descriptors` has the length that is passed.
        context.call(format_args!("cuMemSetAccess at {:#x}", span.address()), || unsafe {
            (functions.set_access)(span.address(), span.bytes(), descriptors.as_ptr(), descriptors.len())
        })
    }

    /// Returns the GPU's address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.mapping.span.address()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.span.bytes()
    }

    /// Returns all of the memory as a span.
    #[must_use]
    pub fn span(&self) -> DeviceSpan {
        self.mapping.span
    }

    /// Returns the memory, for example to export it.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }
}

impl fmt::Debug for MappedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedMemory").field("span", &self.mapping.span).finish_non_exhaustive()
    }
}

impl Drop for GpuMapping {
    fn drop(&mut self) {
        let (address, bytes) = (self.span.address(), self.span.bytes());
        let object = format!("the mapping of {} at {address:#x}", Bytes(bytes as u64));
        // SAFETY: mapped by `MappedMemory::new`, and unmapped once.
        self.context.end(object, "cuMemUnmap", || unsafe { (self.functions.unmap)(address, bytes) });
    }
}
