//! The memory of a job in one process.

#![allow(unsafe_code, reason = "makes views of mapped memory by address")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::error::{AttachError, Error, Result};
use crate::node_copies::buffer_copies::BufferCopies;
use crate::segment::control::Control;
use crate::segment::control_layout::ControlLayout;
use crate::segment::fillers::Fillers;
use crate::segment::identity::Identity;
use crate::segment::mapping::Mapping;
use crate::segment::region_claims::RegionClaims;
use hostbuf_memory::{Seals, memfd};
use hostbuf_protocol::environment::ENV_LOCAL_SIZE;
use hostbuf_protocol::range::{AgreedRange, Part};
use hostbuf_register::Span;
use hostbuf_register::own_ranges::{self, OwnRange};

/// The memory of a job in this process: the control page and all buffers, mapped at the agreed
/// address.
#[derive(Debug)]
pub(crate) struct MappedSegment {
    pub(crate) identity: Identity,
    /// The address of the control page, and the places of its tables.
    control: (usize, ControlLayout),
    pub(crate) control_fd: OwnedFd,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) fillers: Fillers,
    pub(crate) regions: RegionClaims,
    /// The entries that exempt the buffers from monitoring by registration caches.
    own: OnceLock<Vec<OwnRange>>,
    /// For each buffer, the copies of its sections, set by a freeze.
    pub(crate) copies: Vec<BufferCopies>,
    /// The mapping, which ends with the last handle. `None` for the buffers of a launcher, which
    /// stay mapped.
    pub(crate) mapping: Option<Mapping>,
}

impl MappedSegment {
    /// Returns the control page.
    pub(crate) fn control(&self) -> Control<'_> {
        let (address, layout) = self.control;
        // SAFETY: mapped until the segment is dropped, by the contract of open(), which has also
        // compared the lengths.
        unsafe { Control::at(address, layout) }
    }

    /// Returns the number of ranks that a launcher has started on this host, or 1 if there is no
    /// launcher or the number is unknown.
    pub(crate) fn launched_ranks(&self) -> usize {
        let said = || std::env::var(ENV_LOCAL_SIZE).ok()?.parse().ok();
        if self.mapping.is_some() { 1 } else { said().unwrap_or(1) }
    }
}

impl MappedSegment {
    /// Reads and checks the identity of the memory that is mapped as `range` describes.
    ///
    /// # Safety
    /// `range` must be mapped in this process. Either `mapping` unmaps it, or it stays mapped
    /// until the process ends.
    pub(crate) unsafe fn open(
        range: &AgreedRange<'_>,
        mut descriptors: Vec<OwnedFd>,
        mapping: Option<Mapping>,
    ) -> Result<Arc<MappedSegment>> {
        let expected = range.descriptors();
        if descriptors.len() != expected {
            let why = format!(
                "the agent of this host sent {} descriptors instead of {expected}",
                descriptors.len()
            );
            return Err(AttachError::AgentGone { why }.into());
        }
        let fds = descriptors.split_off(2);
        let [identity_fd, control_fd] =
            <[OwnedFd; 2]>::try_from(descriptors).expect("two descriptors remain");
        let seals =
            memfd::seals(identity_fd.as_fd()).map_err(Error::os("reading the seals of the identity"))?;
        let all = Seals::WRITE | Seals::SEAL | Seals::SHRINK | Seals::GROW;
        if !seals.contains(all) {
            return Err(Error::Corrupt { word: "the seals of the identity", found: u64::from(seals.bits()) });
        }
        // A mapping beyond the end of its file would raise SIGBUS.
        for (fd, part) in [(&identity_fd, range.identity), (&control_fd, range.control)] {
            let found = memfd::length(fd.as_fd()).map_err(Error::os("fstat of a memory file"))?;
            if found < part.length {
                return Err(Error::Corrupt { word: "the length of a memory file", found });
            }
        }
        let at = |part: Part| (range.address + part.offset) as usize;
        // SAFETY: mapped by the contract of this function, and sealed, so no process changes it.
        let bytes = unsafe {
            std::slice::from_raw_parts(at(range.identity) as *const u8, range.identity.length as usize)
        };
        let (identity, layout) = Identity::decode(bytes)?;
        let fits = identity.address == range.address
            && identity.length == range.length
            && layout.length() <= range.control.length
            && identity
                .buffers
                .iter()
                .map(|i| Part { offset: i.offset, length: i.length })
                .eq(range.buffers.iter().map(|extent| extent.part));
        if !fits {
            return Err(Error::Corrupt { word: "the address", found: identity.address });
        }
        check_files(&identity, &fds)?;
        let copies = identity.buffers.iter().map(|_| BufferCopies::default()).collect();
        let segment = Arc::new(MappedSegment {
            identity,
            control: (at(range.control), layout),
            control_fd,
            fds,
            fillers: Fillers::default(),
            regions: RegionClaims::default(),
            own: OnceLock::new(),
            copies,
            mapping,
        });
        let mut own = Vec::new();
        for buffer in &segment.identity.buffers {
            let span =
                Span::new((segment.identity.address + buffer.offset) as usize, buffer.length as usize)?;
            let keeper: Arc<dyn Send + Sync> = segment.clone();
            // SAFETY: the buffers stay mapped until the segment is dropped. Their pages are
            // discarded only while a failed fill is undone, when no device knows them, and replaced
            // only by copies of frozen pages.
            own.push(unsafe { own_ranges::declare(span, Arc::downgrade(&keeper)) });
        }
        segment.own.get_or_init(|| own);
        Ok(segment)
    }
}

/// Checks that the memory files of the buffers are those of the identity, in its order.
fn check_files(identity: &Identity, fds: &[OwnedFd]) -> Result<()> {
    for (fd, buffer) in fds.iter().zip(&identity.buffers) {
        let found = memfd::inode(fd.as_fd()).map_err(Error::os("fstat of a memory file"))?;
        if found != buffer.inode {
            return Err(Error::Corrupt { word: "the memory file of a buffer", found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_memory::memfd::Backing;

    #[test]
    fn another_memory_file_is_refused() {
        let options = crate::BufferOptions::new(4096);
        let buffer = crate::HostBuffer::allocate(&crate::job::Solo, options).expect("there is memory");
        let MappedSegment { identity, fds, .. } = &*buffer.segment;
        assert!(check_files(identity, fds).is_ok());
        let other = memfd::create("hostbuf:other", 4096, Backing::Shmem).expect("there is memory");
        assert!(matches!(check_files(identity, &[other]), Err(Error::Corrupt { .. })));
    }
}
