//! The blocks of a segment that this process reads.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hostbuf_memory::{Seals, memfd};

use hostbuf_os::PrivateFd;

use super::broker_link::unexpected;
#[cfg(feature = "cuda")]
use super::imported_gpu::ImportedGpu;
use crate::error::PoolError;
use crate::segment::{DataView, ViewAccess};
use crate::wire::{SegmentKey, SegmentTerms};

/// The blocks of a segment that this process reads.
#[derive(Debug)]
pub(super) enum AttachedData {
    /// A memory file, and its mapping.
    Host(Arc<DataView>, PrivateFd),
    /// Memory of a GPU, which is imported when a block of it is acquired. A process without CUDA
    /// hands it back to a new broker too.
    Gpu {
        memory: PrivateFd,
        /// The handles of the blocks' events.
        events: PrivateFd,
        #[cfg(feature = "cuda")]
        imported: Box<ImportedGpu>,
    },
}

impl AttachedData {
    /// Takes the descriptors of the blocks, and maps a memory file.
    ///
    /// # Errors
    /// [`PoolError::Memory`] for files that are not those of the segment.
    pub(super) fn take(
        key: SegmentKey,
        terms: SegmentTerms,
        descriptors: &mut impl Iterator<Item = PrivateFd>,
    ) -> Result<AttachedData, PoolError> {
        let mut next = || descriptors.next().ok_or_else(unexpected);
        if terms.gpu.is_some() {
            return Ok(AttachedData::Gpu {
                memory: next()?,
                events: next()?,
                #[cfg(feature = "cuda")]
                imported: Box::default(),
            });
        }
        let file = next()?;
        let seals = memfd::seals(file.as_fd()).map_err(PoolError::os("checking the data file"))?;
        if !seals.contains(Seals::FUTURE_WRITE) {
            tracing::debug!(%key, "the kernel does not seal it against writes of other processes");
        }
        let view = DataView::map(file.as_fd(), terms.geometry, ViewAccess::Read)?;
        Ok(AttachedData::Host(Arc::new(view), file))
    }

    /// Returns the mapping of a memory file.
    ///
    /// # Panics
    /// If the blocks lie on a GPU.
    pub(super) fn host(&self) -> &Arc<DataView> {
        match self {
            AttachedData::Host(view, _) => view,
            AttachedData::Gpu { .. } => unreachable!("blocks on a GPU have a type of their own"),
        }
    }

    /// Returns the descriptors of the blocks.
    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            AttachedData::Host(_, file) => vec![file.as_fd()],
            AttachedData::Gpu { memory, events, .. } => vec![memory.as_fd(), events.as_fd()],
        }
    }
}
