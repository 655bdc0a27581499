//! A mapping of a part of a memory file, to allocate its pages.

#![allow(unsafe_code, reason = "touches pages by their address")]

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

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

    /// Makes the page at `at` a part of the page table of this process, and no other page. Returns
    /// its address. The page is allocated.
    pub(super) fn touch(&self, at: u64) -> usize {
        assert!(at < self.0.len());
        let address = self.0.start() + at as usize;
        // A read would also map up to 15 pages beside it (fault-around), maybe of other workers,
        // and the kernel does not move a page that several processes have mapped. The compiler
        // replaces a `fetch_or(0)` by a read or by nothing.
        // SAFETY: inside the mapping. The page exists, and the file cannot shrink.
        let byte = unsafe { AtomicU8::from_ptr(address as *mut u8) };
        let _ = byte.compare_exchange(0, std::hint::black_box(0), Ordering::Relaxed, Ordering::Relaxed);
        address
    }
}

impl AsRef<FileView> for FileView {
    fn as_ref(&self) -> &FileView {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, Backing};
    use hostbuf_os::memory;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_touch_maps_one_page_and_changes_nothing() {
        const PAGES: u64 = 64;
        let page = memory::page_size();
        let fd = memfd::create("hostbuf-test", PAGES * page, Backing::Shmem).unwrap();
        let view = || FileView::map(fd.as_raw_fd(), 0, PAGES * page, Pages::Small).unwrap();
        let other = view();
        for number in 0..PAGES {
            other.touch(number * page);
        }
        let file = std::fs::File::from(fd.try_clone().unwrap());
        file.write_all_at(&[7], 20 * page + 1).unwrap();
        let view = view();
        let address = view.touch(20 * page);
        let mut entries = [0; 8 * PAGES as usize];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, view.0.start() as u64 / page * 8).unwrap();
        let is_present = |entry: &[u8]| u64::from_ne_bytes(entry.try_into().unwrap()) >> 63 == 1;
        let mapped: Vec<usize> =
            entries.chunks(8).enumerate().filter(|(_, entry)| is_present(entry)).map(|(i, _)| i).collect();
        assert_eq!(mapped, [20]);
        assert_eq!(address, view.0.start() + 20 * page as usize);
        let mut bytes = [1; 2];
        file.read_exact_at(&mut bytes, 20 * page).unwrap();
        assert_eq!(bytes, [0, 7]);
    }
}
