//! The layout of a job's buffers in the agreed range.
//!
//! ```text
//! address                                                                    address + length
//!   | buffer 0 ... | guard | buffer 1 ... | guard | ... | control page | guard |
//!   ^ aligned to its pages         each aligned to 2 MiB at least
//! ```
//!
//! The guards are mapped without access, so a write beyond a buffer's end faults instead of
//! reaching the next buffer.

use crate::segment::options::BufferOptions;
use crate::segment::page_layout::CONTROL_LENGTH;
use hostbuf_protocol::wire::{Extent, Extents, FLAG_DUMP, Winner};

const GUARD: u64 = 2 << 20;

/// Returns the layout of `buffers` as a [`Winner`] whose address is not known yet (0), and the
/// alignment of its address.
#[must_use]
pub fn plan(buffers: &[BufferOptions]) -> (Winner, u64) {
    let mut extents = Extents::default();
    let mut at = 0u64;
    let mut align = GUARD;
    for buffer in buffers {
        // The pages of Auto may become 1 GiB only if the size is a multiple of that.
        let auto_1g = buffer.pages == crate::Pages::Auto && buffer.size.is_multiple_of(1 << 30);
        let page = if auto_1g { 1 << 30 } else { buffer.pages.size().max(GUARD) };
        align = align.max(page);
        at = at.next_multiple_of(page);
        let length = buffer.pages.round_up(buffer.size);
        let flags = u64::from(buffer.mmap_flags as u32) | if buffer.dump { FLAG_DUMP } else { 0 };
        assert!(
            extents.push(Extent { offset: at, length, flags }),
            "check_all() bounds the number of buffers"
        );
        at = (at + length).next_multiple_of(GUARD) + GUARD;
    }
    let length = (at + CONTROL_LENGTH).next_multiple_of(GUARD) + GUARD;
    (Winner { address: 0, length, control: at, control_length: CONTROL_LENGTH, buffers: extents }, align)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    #[test]
    fn buffers_are_aligned_and_do_not_overlap() {
        let sizes = [1, 4096, 3 << 20, 1 << 30, (1 << 30) + 1];
        for pages in [Pages::Auto, Pages::Small, Pages::Transparent, Pages::Huge2M, Pages::Huge1G] {
            let buffers: Vec<BufferOptions> = sizes
                .iter()
                .enumerate()
                .map(|(i, &s)| BufferOptions::new(s).pages(pages).name(format!("b{i}")))
                .collect();
            let (winner, align) = plan(&buffers);
            let mut end = 0;
            for (extent, options) in winner.buffers.as_slice().iter().zip(&buffers) {
                assert!(extent.offset >= end && extent.offset.is_multiple_of(GUARD));
                assert!(extent.length >= options.size && align >= pages.size());
                end = extent.offset + extent.length + 1;
            }
            assert!(winner.control >= end && winner.control + CONTROL_LENGTH < winner.length);
            assert!(Winner::parse(&winner.frame()).is_some());
        }
    }
}
