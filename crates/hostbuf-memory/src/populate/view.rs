//! A part of a memory file, mapped for a moment to have its pages taken.

#![allow(unsafe_code)]

use crate::pages::Pages;
use crate::populate::work::EXTENT;

/// The errno for a mapping that failed: for want of addresses, and not of memory, ENOMEM becomes a number of our own.
fn no_addresses() -> i32 {
    match nix::errno::Errno::last_raw() {
        libc::ENOMEM => NO_ADDRESSES,
        errno => errno,
    }
}

pub(super) const NO_ADDRESSES: i32 = libc::EOVERFLOW;

/// A part of a file, mapped at a multiple of its page size and of 2 MiB.
pub(super) struct View {
    length: u64,
    area: *mut libc::c_void,
    area_length: usize,
    at: *mut libc::c_void,
}

// SAFETY: the mapping stays until drop, and is only named to the kernel, never read or written.
unsafe impl Sync for View {}

impl View {
    pub(super) fn map(fd: i32, offset: u64, length: u64, pages: Pages) -> std::result::Result<View, i32> {
        let align = pages.size().max(EXTENT) as usize;
        let area_length = length as usize + align;
        // SAFETY: a new private mapping without access, only to find aligned room.
        let area = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), area_length, libc::PROT_NONE, flags, -1, 0)
        };
        if area == libc::MAP_FAILED {
            return Err(no_addresses());
        }
        let aligned = (area as usize).next_multiple_of(align) as *mut libc::c_void;
        let mut view = View { length, area, area_length, at: aligned };
        // SAFETY: over the area just made, which nobody else knows.
        view.at = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            libc::mmap(aligned, length as usize, rw, flags, fd, offset as libc::off_t)
        };
        if view.at == libc::MAP_FAILED {
            // Pages of a pool are set aside when they are mapped: there it is memory that is wanting.
            let pool = matches!(pages, Pages::Huge2M | Pages::Huge1G);
            return Err(if pool { nix::errno::Errno::last_raw() } else { no_addresses() });
        }
        if pages == Pages::Transparent {
            // Where the kernel allows it this alone makes the first touch take a huge page.
            let _ = view.advise(0, length, libc::MADV_HUGEPAGE);
        }
        Ok(view)
    }

    /// Gives the kernel an advice about a part, none that discards anything.
    pub(super) fn advise(&self, from: u64, length: u64, advice: i32) -> std::result::Result<(), i32> {
        debug_assert!(from + length <= self.length);
        let at = self.at.wrapping_byte_add(from as usize);
        // SAFETY: inside the mapping.
        if unsafe { libc::madvise(at, length as usize, advice) } == 0 {
            Ok(())
        } else {
            Err(nix::errno::Errno::last_raw())
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: map() made this area and handed out nothing of it.
        unsafe { libc::munmap(self.area, self.area_length) };
    }
}

impl AsRef<View> for View {
    fn as_ref(&self) -> &View {
        self
    }
}
