//! The memory of a ring.

#![allow(unsafe_code, reason = "allocates memory with an alignment, and promises that it stays")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use hostbuf_register::RingMemory;
use nix::sys::mman::{MmapAdvise, madvise};

/// The alignment that files without the page cache need.
pub(crate) const ALIGNMENT: usize = 4096;

/// The size of a transparent huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Ordinary host memory, for devices that need no registration. Large memory gets huge pages if the
/// kernel grants them.
pub struct HostMemory {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: nobody else has the memory.
unsafe impl Send for HostMemory {}
// SAFETY: a shared reference gives the address only.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates `bytes` of zeros. Ends the process if there is no memory.
    ///
    /// # Panics
    /// If `bytes` is 0, or more than `isize::MAX`.
    #[must_use]
    pub fn new(bytes: usize) -> HostMemory {
        let layout = layout(bytes);
        HostMemory::with_layout(layout).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// Allocates `bytes` of zeros. Returns `None` if there is no memory.
    ///
    /// # Panics
    /// If `bytes` is 0, or more than `isize::MAX`.
    #[must_use]
    pub fn try_new(bytes: usize) -> Option<HostMemory> {
        HostMemory::with_layout(layout(bytes))
    }

    fn with_layout(layout: Layout) -> Option<HostMemory> {
        // SAFETY: the length is not zero.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        advise_huge_pages(address, layout.size());
        Some(HostMemory { address, layout })
    }
}

fn layout(bytes: usize) -> Layout {
    assert!(bytes > 0, "memory has at least one byte");
    Layout::from_size_align(bytes, ALIGNMENT).expect("an address space has these bytes")
}

/// Advises the kernel to give memory huge pages, of which it has whole ones. A kernel without huge
/// pages rejects it.
fn advise_huge_pages(address: NonNull<u8>, bytes: usize) {
    let before = address.addr().get().next_multiple_of(HUGE_PAGE) - address.addr().get();
    let Some(length) = bytes.checked_sub(before).map(|rest| rest / HUGE_PAGE * HUGE_PAGE) else { return };
    // SAFETY: within the memory, whose content stays.
    let start = unsafe { address.add(before.min(bytes)) }.cast();
    // SAFETY: as above.
    let _ = unsafe { madvise(start, length, MmapAdvise::MADV_HUGEPAGE) };
}

// SAFETY: the memory is that of this object alone.
unsafe impl RingMemory for HostMemory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").field("bytes", &self.layout.size()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_that_no_address_space_has_is_refused() {
        assert!(HostMemory::try_new(isize::MAX as usize / 2).is_none());
        assert_eq!(HostMemory::try_new(1).unwrap().bytes(), 1);
    }
}
