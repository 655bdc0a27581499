//! Memory of a test's own, by system calls.

#![allow(unsafe_code, reason = "maps memory by system calls")]

use std::ptr::null_mut;

pub const PAGE: usize = 4096;

/// A mapping with unmapped pages on both sides, so that it merges with nothing.
pub struct GuardedMapping {
    base: usize,
    pages: usize,
}

impl GuardedMapping {
    pub fn new(pages: usize) -> GuardedMapping {
        let length = (pages + 2) * PAGE;
        // SAFETY: new memory, of which only the inner part is made accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(null_mut(), length, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let inner = base.byte_add(PAGE);
            assert_eq!(libc::mprotect(inner, pages * PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            inner.cast::<u8>().write_bytes(1, pages * PAGE);
            GuardedMapping { base: base as usize, pages }
        }
    }

    pub fn at(&self) -> usize {
        self.base + PAGE
    }

    pub fn pointer(&self) -> *const u8 {
        self.at() as *const u8
    }

    #[allow(clippy::len_without_is_empty, reason = "an area has at least one page")]
    pub fn len(&self) -> usize {
        self.pages * PAGE
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        // SAFETY: nothing else lies there: what a test unmaps it maps again.
        unsafe { libc::munmap(self.base as *mut _, (self.pages + 2) * PAGE) };
    }
}

/// Maps `length` bytes at `address`, over whatever is there.
pub fn map_over(address: usize, length: usize) {
    let (rw, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: over a test's own area.
    let got = unsafe { libc::mmap(address as *mut _, length, rw, flags, -1, 0) };
    assert_eq!(got as usize, address);
}

/// Returns whether all bytes of a range are `byte`.
pub fn all_are(at: usize, length: usize, byte: u8) -> bool {
    // SAFETY: mapped by the check that asks; a device may have written there.
    (at..at + length).all(|p| unsafe { (p as *const u8).read_volatile() } == byte)
}
