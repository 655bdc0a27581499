//! A part of a memory file, mapped for a moment to have its pages taken.

use crate::mapping::{Mapping, Refused};
use crate::pages::{EXTENT, Pages};

/// The errno for a mapping that failed for want of addresses, and not of memory.
pub(super) const NO_ADDRESSES: i32 = libc::EOVERFLOW;

/// Tells a lack of addresses from a lack of memory.
fn no_addresses(errno: i32) -> i32 {
    if errno == libc::ENOMEM { NO_ADDRESSES } else { errno }
}

/// A part of a file, mapped at a multiple of its page size and of 2 MiB.
pub(super) struct View(Mapping);

impl View {
    pub(super) fn map(fd: i32, offset: u64, length: u64, pages: Pages) -> Result<View, i32> {
        let align = pages.size().max(EXTENT) as usize;
        let mapping = Mapping::new(fd, offset, length, align).map_err(|refused| match (refused, pages) {
            // The kernel reserves pages of a pool when they are mapped, so memory is missing there.
            (Refused::File(errno), Pages::Huge2M | Pages::Huge1G) => errno,
            (Refused::Addresses(errno) | Refused::File(errno), _) => no_addresses(errno),
        })?;
        let view = View(mapping);
        if pages == Pages::Transparent {
            // Where the kernel allows it this alone makes the first touch take a huge page.
            let _ = view.advise(0, length, libc::MADV_HUGEPAGE);
        }
        Ok(view)
    }

    /// Gives the kernel an advice about a part. `advice` must be one that discards nothing.
    pub(super) fn advise(&self, from: u64, length: u64, advice: i32) -> Result<(), i32> {
        self.0.advise(from, length, advice)
    }
}

impl AsRef<View> for View {
    fn as_ref(&self) -> &View {
        self
    }
}
