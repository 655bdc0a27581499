//! A mapping of a part of a memory file, to allocate its pages.

#![allow(unsafe_code, reason = "touches pages by their address")]

use std::io;

use hostbuf_os::mempolicy::{NodeMask, bind_range};

use crate::mapping::{FileMapping, MappingRefused};
use crate::pages::{EXTENT, Pages};

/// The errno of a mapping that failed for lack of addresses, and not of memory.
pub(super) const NO_ADDRESSES: i32 = libc::EOVERFLOW;

/// Converts an errno of a mapping that needs no memory: ENOMEM means a lack of addresses.
fn no_addresses(errno: i32) -> i32 {
    if errno == libc::ENOMEM { NO_ADDRESSES } else { errno }
}

/// A part of a file, mapped at a multiple of its page size and of 2 MiB.
pub(super) struct FileView(FileMapping);

impl FileView {
    pub(super) fn map(fd: i32, offset: u64, length: u64, pages: Pages) -> Result<FileView, i32> {
        let align = pages.size().max(EXTENT) as usize;
        let mapping =
            FileMapping::of_raw(fd, offset, length, align).map_err(|refused| match (refused, pages) {
                // The kernel reserves the pages of a pool when they are mapped, so ENOMEM means a
                // lack of memory.
                (MappingRefused::File(errno), Pages::Huge2M | Pages::Huge1G) => errno,
                (MappingRefused::Addresses(errno) | MappingRefused::File(errno), _) => no_addresses(errno),
            })?;
        let view = FileView(mapping);
        match pages {
            // If the kernel supports it, the first touch then allocates a huge page.
            Pages::Transparent => drop(view.advise(0, length, libc::MADV_HUGEPAGE)),
            // With `shmem_enabled` set to `always` it would allocate a huge page.
            Pages::Small => drop(view.advise(0, length, libc::MADV_NOHUGEPAGE)),
            _ => {}
        }
        Ok(view)
    }

    /// Passes an advice about a part to the kernel. `advice` must not discard anything.
    pub(super) fn advise(&self, from: u64, length: u64, advice: i32) -> Result<(), i32> {
        self.0.advise(from, length, advice)
    }
}

impl FileView {
    /// Lets the kernel take the pages of a pool from `nodes` only.
    pub(super) fn bind(&self, nodes: &NodeMask) -> io::Result<()> {
        bind_range(self.0.start(), self.0.len() as usize, nodes)
    }

    /// Reads a byte at `at`, whose page is allocated, so that it is in the page table of this
    /// process. Returns its address.
    pub(super) fn touch(&self, at: u64) -> usize {
        assert!(at < self.0.len());
        let address = self.0.start() + at as usize;
        // SAFETY: inside the mapping. The page exists, and the file cannot shrink.
        unsafe { (address as *const u8).read_volatile() };
        address
    }
}

impl AsRef<FileView> for FileView {
    fn as_ref(&self) -> &FileView {
        self
    }
}
