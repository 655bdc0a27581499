//! Shared memory without an agreed address, for pools and slabs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hostbuf_os::memory;

use crate::create::create_all;
use crate::error::{Error, Result};
use crate::mapping::{FileMapping, MappingRefused};
use crate::pages::Pages;
use crate::populate::{self, Workers};
use crate::space::Demand;

/// A memory file of this process, populated and mapped at an address of the kernel's choice.
/// Dropping it unmaps the file. It is shared with forked children and excluded from core files.
#[derive(Debug)]
pub struct AnonymousSegment {
    mapping: FileMapping,
    file: OwnedFd,
    length: u64,
    pages: Pages,
}

impl AnonymousSegment {
    /// Creates a segment for `demand`, named `name` in `/proc/PID/maps`. The thread of the caller
    /// and `workers` populate it, unless the demand is lazy. The bytes are zero.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes; [`Error::NoSpace`] and [`Error::Unsupported`] before any
    /// page is allocated, or if pages ran out meanwhile; [`Error::Os`]. Nothing stays mapped.
    pub fn new(name: &str, demand: Demand, workers: Workers) -> Result<AnonymousSegment> {
        if demand.size == 0 {
            return Err(Error::Invalid { what: "invalid size 0: expected at least one byte".into() });
        }
        let length = demand.pages.round_up(demand.size);
        let created = create_all(&[demand], &[name.to_owned()])?;
        let (file, pages) = created.into_iter().next().expect("one file for one demand");
        if !demand.lazy {
            let strict = demand.pages == Pages::Transparent;
            populate::populate(file.as_fd(), length, pages, strict, workers, &mut |_| {})?;
        }
        let align = pages.size().max(memory::page_size()) as usize;
        let mapping = FileMapping::new(file.as_fd(), 0, length, align).map_err(|refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            let source = std::io::Error::from_raw_os_error(errno);
            Error::os(format!("mapping a memory file of {length} bytes"))(source)
        })?;
        // If the kernel rejects the advice, core files are only larger.
        let _ = mapping.advise(0, length, libc::MADV_DONTDUMP);
        Ok(AnonymousSegment { mapping, file, length, pages })
    }

    /// Returns the address of the first byte. All bytes are readable and writable while the segment
    /// exists.
    #[must_use]
    pub fn start(&self) -> usize {
        self.mapping.start()
    }

    /// Returns the number of bytes: the requested size, rounded up to whole pages.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a segment has at least one byte")]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns the kind of pages of the file: [`Pages::Transparent`] also if only some of the pages
    /// are huge.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

impl AsFd for AnonymousSegment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "the tests read and write the segment by its address")]

    use super::*;

    #[test]
    fn a_segment_is_zeroed_writable_and_unmapped_at_the_end() {
        for (size, pages) in [(1, Pages::Auto), (5 << 20, Pages::Auto), (3 << 20, Pages::Small)] {
            let demand = Demand { size, pages, lazy: false };
            let segment = AnonymousSegment::new("hostbuf-test", demand, Workers::of_this_process()).unwrap();
            assert!(segment.len() as u64 >= size && segment.start().is_multiple_of(4096));
            let taken = nix::sys::stat::fstat(&segment).unwrap().st_blocks as usize * 512;
            assert_eq!(taken, segment.len());
            let start = segment.start();
            // SAFETY: mapped while the segment lives, and only this test uses it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, segment.len()) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(7);
            let again = FileMapping::new(segment.file.as_fd(), 0, 4096, 4096).unwrap();
            // SAFETY: another mapping of the same file.
            assert_eq!(unsafe { *(again.start() as *const u8) }, 7);
            drop(segment);
            assert!(matches!(
                hostbuf_os::maps::range_access(start, start + 1),
                Ok(hostbuf_os::maps::RangeAccess::Hole(_))
            ));
        }
    }

    #[test]
    fn a_segment_that_is_too_large_is_rejected() {
        let demand = |size| Demand { size, pages: Pages::Small, lazy: false };
        let refused = |size| {
            AnonymousSegment::new("hostbuf-test", demand(size), Workers::of_this_process()).unwrap_err()
        };
        assert!(matches!(refused(1 << 50), Error::NoSpace(_)));
        assert!(matches!(refused(0), Error::Invalid { .. }));
    }
}
