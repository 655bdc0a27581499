//! Memory of a GPU that this process has made for its blocks.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hostbuf_cuda::{
    CudaContext, CudaError, CudaEvent, GpuAccess, MappedMemory, PhysicalMemory, VirtualRange,
};

use hostbuf_os::{ForkLock, PrivateFd};

use super::own_events;
use crate::error::PoolError;
use crate::segment::{EventHandle, SegmentGeometry, write_handles};
use crate::wire::{GpuTerms, SegmentKey};

/// Memory of a GPU that this process has made for its blocks, with an event for each block.
#[derive(Debug)]
pub(super) struct ProducedGpu {
    /// The ready events: each is recorded behind the work that writes its block.
    events: Arc<[CudaEvent]>,
    mapped: MappedMemory,
    memory_file: PrivateFd,
    events_file: PrivateFd,
}

impl ProducedGpu {
    /// Returns the terms of the memory that the blocks need on the context's GPU.
    ///
    /// # Errors
    /// [`PoolError::Gpu`].
    pub(super) fn terms(context: &CudaContext, geometry: SegmentGeometry) -> Result<GpuTerms, PoolError> {
        let invalid = || PoolError::Invalid {
            what: format!("invalid blocks: {} bytes do not fit on {}", geometry.data_bytes(), context.gpu()),
        };
        let bytes = usize::try_from(geometry.data_bytes()).map_err(|_| invalid())?;
        // A range has the size that the memory will have.
        let bytes = VirtualRange::reserve(context, bytes, None)?.bytes() as u64;
        GpuTerms::new(context.gpu().uuid()?.0, bytes, geometry).ok_or_else(invalid)
    }

    /// Makes the memory and the events of a segment.
    ///
    /// # Errors
    /// [`PoolError::Gpu`]; [`PoolError::Memory`].
    pub(super) fn make(
        context: &CudaContext,
        key: SegmentKey,
        gpu: GpuTerms,
        geometry: SegmentGeometry,
    ) -> Result<ProducedGpu, PoolError> {
        let events: Vec<CudaEvent> =
            (0..geometry.blocks()).map(|_| CudaEvent::interprocess(context)).collect::<Result<_, _>>()?;
        let handles: Vec<EventHandle> = events.iter().map(CudaEvent::export).collect::<Result<_, _>>()?;
        let events_file = PrivateFd::from(write_handles(&handles, geometry)?);
        let memory = PhysicalMemory::create(context, gpu.bytes() as usize)?;
        let memory_file = export_private(&memory)?;
        let range = VirtualRange::reserve(context, memory.bytes(), None)?;
        let mapped = range.map(memory, &[GpuAccess::read_write(context.gpu())])?;
        let events: Arc<[CudaEvent]> = events.into();
        own_events::add(key, &events);
        Ok(ProducedGpu { events, mapped, memory_file, events_file })
    }

    /// Returns the GPU's address of the first block.
    pub(super) fn address(&self) -> u64 {
        self.mapped.address()
    }

    /// Returns the context in which the memory was made.
    pub(super) fn context(&self) -> &CudaContext {
        self.mapped.memory().context().expect("it was made in a context")
    }

    /// Returns the event of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub(super) fn event(&self, block: u32) -> &CudaEvent {
        &self.events[block as usize]
    }

    /// Returns the descriptors: of the memory, and of the handles of the events.
    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.memory_file.as_fd(), self.events_file.as_fd()]
    }

    /// Waits until all recorded work has ended.
    ///
    /// # Errors
    /// The driver's, also that of the work.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        self.events.iter().try_for_each(CudaEvent::synchronize)
    }
}

/// Exports memory by a descriptor that no forked child gets.
fn export_private(memory: &PhysicalMemory) -> Result<PrivateFd, CudaError> {
    let mut unforked = ForkLock::take();
    memory.export().map(|file| unforked.keep(file))
}
