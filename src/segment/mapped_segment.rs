//! The memory of a job in one process.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use crate::error::{AttachError, Error, Result};
use crate::segment::control::Control;
use crate::segment::fillers::Fillers;
use crate::segment::identity::Identity;
use crate::segment::mapping::Mapping;
use hostbuf_protocol::wire::{ENV_LOCAL_SIZE, Winner};
use hostbuf_register::Span;
use hostbuf_register::own_ranges::{self, OwnRange};

/// The memory of a job in this process: the control page and all buffers, mapped at the agreed
/// address.
#[derive(Debug)]
pub(crate) struct MappedSegment {
    pub(crate) identity: Identity,
    pub(crate) control: Control,
    pub(crate) control_fd: OwnedFd,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) fillers: Fillers,
    /// The entries that exempt the buffers from monitoring by registration caches.
    own: OnceLock<Vec<OwnRange>>,
    /// Unmaps the memory with the last handle. `None` for the buffers of a launcher, which stay
    /// mapped.
    pub(crate) mapping: Option<Mapping>,
}

impl MappedSegment {
    /// Returns the number of ranks that a launcher has started on this host, or 1 if there is no
    /// launcher or the number is unknown.
    pub(crate) fn launched_ranks(&self) -> usize {
        let said = || std::env::var(ENV_LOCAL_SIZE).ok()?.parse().ok();
        if self.mapping.is_some() { 1 } else { said().unwrap_or(1) }
    }
}

impl MappedSegment {
    /// Reads and checks the control page of the memory that is mapped as `winner` describes.
    ///
    /// # Safety
    /// `winner` must be mapped in this process. Either `mapping` unmaps it, or it stays mapped
    /// until the process ends.
    pub(crate) unsafe fn open(
        winner: &Winner,
        mut descriptors: Vec<OwnedFd>,
        mapping: Option<Mapping>,
    ) -> Result<Arc<MappedSegment>> {
        if descriptors.len() != 1 + winner.buffers.as_slice().len() {
            let why = format!("the agent of this host sent {} descriptors", descriptors.len());
            return Err(AttachError::AgentGone { why }.into());
        }
        // SAFETY: by the contract of this function.
        let control = unsafe { Control::at((winner.address + winner.control) as usize) };
        let identity = control.identity()?;
        let fits = identity.address == winner.address
            && identity.length == winner.length
            && identity.buffers().len() == winner.buffers.as_slice().len()
            && identity
                .buffers()
                .iter()
                .zip(winner.buffers.as_slice())
                .all(|(i, p)| (i.offset, i.length) == (p.offset, p.length));
        if !fits {
            return Err(Error::Corrupt { word: "the address", found: identity.address });
        }
        let fds = descriptors.split_off(1);
        let control_fd = descriptors.remove(0);
        let segment = Arc::new(MappedSegment {
            identity,
            control,
            control_fd,
            fds,
            fillers: Fillers::default(),
            own: OnceLock::new(),
            mapping,
        });
        let mut own = Vec::new();
        for buffer in identity.buffers() {
            let span = Span::new((identity.address + buffer.offset) as usize, buffer.length as usize)?;
            let keeper: Arc<dyn Send + Sync> = segment.clone();
            // SAFETY: the buffers stay mapped until the segment is dropped, and their pages are
            // discarded only while a failed fill is undone, when no device knows them.
            own.push(unsafe { own_ranges::declare(span, Arc::downgrade(&keeper)) });
        }
        segment.own.get_or_init(|| own);
        Ok(segment)
    }
}
