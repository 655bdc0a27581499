//! The blocks of a segment that this process writes.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf_os::PrivateFd;

#[cfg(feature = "cuda")]
use super::produced_gpu::ProducedGpu;
use crate::error::PoolError;
use crate::segment::{DataView, SegmentGeometry, ViewAccess};

/// The blocks of a segment that this process writes.
#[derive(Debug)]
pub(super) enum ProducerData {
    /// A memory file, and its mapping.
    Host(Arc<DataView>, PrivateFd),
    /// Memory of a GPU.
    #[cfg(feature = "cuda")]
    Gpu(ProducedGpu),
}

impl ProducerData {
    /// Maps a memory file.
    ///
    /// # Errors
    /// [`PoolError::Memory`] for a file that is not that of the segment.
    pub(super) fn map(file: PrivateFd, geometry: SegmentGeometry) -> Result<ProducerData, PoolError> {
        let view = DataView::map(file.as_fd(), geometry, ViewAccess::Write)?;
        Ok(ProducerData::Host(Arc::new(view), file))
    }

    /// Returns the address of a block.
    ///
    /// # Panics
    /// If the blocks lie on a GPU.
    pub(super) fn block(&self, number: u32) -> NonNull<u8> {
        self.host().block(number)
    }

    /// Returns the mapping of a memory file.
    ///
    /// # Panics
    /// If the blocks lie on a GPU.
    pub(super) fn host(&self) -> &Arc<DataView> {
        match self {
            ProducerData::Host(view, _) => view,
            #[cfg(feature = "cuda")]
            ProducerData::Gpu(_) => unreachable!("blocks on a GPU have a type of their own"),
        }
    }

    /// Returns the memory of a GPU.
    ///
    /// # Panics
    /// If the blocks lie on the host.
    #[cfg(feature = "cuda")]
    pub(super) fn gpu(&self) -> &ProducedGpu {
        match self {
            ProducerData::Gpu(gpu) => gpu,
            ProducerData::Host(..) => unreachable!("blocks on the host have a type of their own"),
        }
    }

    /// Returns whether no work of a GPU writes the last published content of a block any more.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables, reason = "only a GPU writes later"))]
    pub(super) fn is_written(&self, number: u32) -> bool {
        match self {
            ProducerData::Host(..) => true,
            // After an error of the context nothing writes.
            #[cfg(feature = "cuda")]
            ProducerData::Gpu(gpu) => gpu.event(number).is_complete().unwrap_or(true),
        }
    }

    /// Returns the descriptors that only this process has before the broker knows them.
    pub(super) fn made_here(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            ProducerData::Host(..) => Vec::new(),
            #[cfg(feature = "cuda")]
            ProducerData::Gpu(gpu) => gpu.files(),
        }
    }

    /// Returns the descriptors of the blocks.
    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            ProducerData::Host(_, file) => vec![file.as_fd()],
            #[cfg(feature = "cuda")]
            ProducerData::Gpu(gpu) => gpu.files(),
        }
    }
}
