//! Memory of a GPU that another process has made, in this process.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock};

use hostbuf_cuda::{
    CudaContext, CudaError, CudaEvent, Driver, GpuAccess, GpuUuid, MappedMemory, PhysicalMemory, VirtualRange,
};
use hostbuf_os::poison::IgnorePoison;

use super::acquire_error::AcquireError;
use super::own_events;
use crate::error::PoolError;
use crate::segment::{EventHandle, read_handles};
use crate::wire::{GpuTerms, SegmentKey, SegmentTerms};

/// The memory of a segment on a GPU. It is imported when it is first asked for; a failed attempt is
/// repeated by the next request.
#[derive(Debug, Default)]
pub(super) struct ImportedGpu {
    memory: OnceLock<GpuView>,
    /// The lock of a thread that imports.
    importing: Mutex<()>,
}

/// The blocks of a segment on a GPU, mapped in this process.
#[derive(Debug)]
pub(super) struct GpuView {
    mapped: MappedMemory,
    /// The reason why the mapping is writable, if the driver does not map for reading only.
    writable: Option<String>,
    handles: Vec<EventHandle>,
    /// The events that are imported, one for each block that was waited for.
    events: Vec<OnceLock<CudaEvent>>,
    /// The events if this process made them: a driver imports none of its own process.
    own: Option<Arc<[CudaEvent]>>,
}

impl ImportedGpu {
    /// Returns the memory, which is imported first if necessary.
    ///
    /// # Errors
    /// [`AcquireError::Gpu`], also for a GPU that this process does not see;
    /// [`AcquireError::Pool`] for a damaged file of handles.
    pub(super) fn get(
        &self,
        key: SegmentKey,
        terms: SegmentTerms,
        gpu: GpuTerms,
        [memory, events]: [BorrowedFd<'_>; 2],
    ) -> Result<&GpuView, AcquireError> {
        if let Some(view) = self.memory.get() {
            return Ok(view);
        }
        let _importing = self.importing.lock().ignore_poison();
        if let Some(view) = self.memory.get() {
            return Ok(view);
        }
        let handles = read_handles(events, terms.geometry).map_err(PoolError::from)?;
        let (mapped, writable) = import(gpu, memory)?;
        let events = handles.iter().map(|_| OnceLock::new()).collect();
        let own = own_events::find(key);
        Ok(self.memory.get_or_init(|| GpuView { mapped, writable, handles, events, own }))
    }
}

/// Imports and maps memory, for reading only if the driver does that. Returns the reason otherwise.
fn import(gpu: GpuTerms, memory: BorrowedFd<'_>) -> Result<(MappedMemory, Option<String>), CudaError> {
    let device = Driver::find()?.gpu_with_uuid(&GpuUuid(gpu.uuid()))?;
    let context = CudaContext::retain(&device)?;
    let map = |access| {
        let memory = PhysicalMemory::import(&context, memory, gpu.bytes() as usize)?;
        VirtualRange::reserve(&context, memory.bytes(), None)?.map(memory, &[access])
    };
    match map(GpuAccess::read_only(&device)) {
        Ok(mapped) => Ok((mapped, None)),
        Err(refused) => {
            let mapped = map(GpuAccess::read_write(&device))?;
            tracing::debug!(%refused, "the memory of a GPU is mapped for writing too");
            Ok((mapped, Some(refused.to_string())))
        }
    }
}

impl GpuView {
    /// Returns the GPU's address of the first block.
    pub(super) fn address(&self) -> u64 {
        self.mapped.address()
    }

    /// Returns the context in which the memory is mapped.
    pub(super) fn context(&self) -> &CudaContext {
        self.mapped.memory().context().expect("it was made in a context")
    }

    /// Returns the reason why the mapping is writable, if it is.
    pub(super) fn writable(&self) -> Option<&str> {
        self.writable.as_deref()
    }

    /// Returns the event of a block, which is imported first if necessary.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn event(&self, block: u32) -> Result<&CudaEvent, CudaError> {
        let block = block as usize;
        if let Some(own) = &self.own {
            return Ok(&own[block]);
        }
        if let Some(event) = self.events[block].get() {
            return Ok(event);
        }
        let event = CudaEvent::import(self.context(), self.handles[block])?;
        // Two threads may import it; one of the events is destroyed.
        Ok(self.events[block].get_or_init(|| event))
    }
}
