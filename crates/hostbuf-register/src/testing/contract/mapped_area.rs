//! Mapped memory with unmapped pages on both sides.

#![allow(unsafe_code, reason = "maps and unmaps memory")]

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use hostbuf_os::maps::{self, RangeAccess};
use hostbuf_os::memory;
use nix::sys::mman::{self, MapFlags, ProtFlags};

use crate::span::Span;

/// A private mapping for reading and writing, between two unmapped pages.
///
/// ```text
///   guard │ hole │ whole │ hole │ guard
/// ```
///
/// Because of the guards, at most a mapping of one page fits into a hole.
pub(super) struct MappedArea {
    parts: [Span; 3],
}

impl MappedArea {
    /// Maps at least `length` bytes, in whole pages.
    pub(super) fn new(length: usize) -> Result<MappedArea, String> {
        let page = memory::page_size() as usize;
        let length = length.next_multiple_of(page);
        let total = NonZeroUsize::new(length + 4 * page).expect("at least four pages");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mman::mmap_anonymous(None, total, access, MapFlags::MAP_PRIVATE) }
            .map_err(|errno| format!("mapping {total} bytes for the test: {errno}"))?;
        let start = start.as_ptr() as usize;
        let span = |start, length| Span::new(start, length).expect("a mapped range");
        let parts =
            [span(start, page), span(start + 2 * page, length), span(start + 3 * page + length, page)];
        for hole in [start + page, start + 2 * page + length] {
            unmap(span(hole, page));
        }
        Ok(MappedArea { parts })
    }

    /// Returns the mapped range.
    pub(super) fn whole(&self) -> Span {
        self.parts[1]
    }

    /// Returns a part of the mapped range.
    pub(super) fn part(&self, offset: usize, length: usize) -> Span {
        let part = Span::new(self.whole().start() + offset, length).expect("a part of the area");
        assert!(self.whole().contains(part), "the suite has mapped too little");
        part
    }

    /// Returns ranges with at most `length + 1` bytes that are unmapped at their beginning, at
    /// their end, or as a whole; or `None` if another thread has mapped something into a hole.
    pub(super) fn ranges_with_holes(&self, length: usize) -> Option<[Span; 3]> {
        let whole = self.whole();
        let span = |start, length| Span::new(start, length).expect("a range beside the area");
        let ranges = [
            span(whole.end(), 1),
            span(whole.end() - length, length + 1),
            span(whole.start() - 1, length + 1),
        ];
        let has_hole =
            |range: &Span| matches!(maps::range_access(range.start(), range.end()), Ok(RangeAccess::Hole(_)));
        ranges.iter().all(has_hole).then_some(ranges)
    }
}

impl Drop for MappedArea {
    fn drop(&mut self) {
        self.parts.into_iter().for_each(unmap);
    }
}

/// Unmaps a part of an area.
fn unmap(part: Span) {
    let at = NonNull::new(part.start() as *mut _).expect("a mapped address");
    // SAFETY: the pages belong to the area alone, and nothing refers to them.
    if let Err(errno) = unsafe { mman::munmap(at, part.len()) } {
        panic!("unmapping {part}: {errno}");
    }
}
