//! The layout of a job's buffers in the agreed range.
//!
//! ```text
//! address                                                                    address + length
//!   | buffer 0 ... | guard | buffer 1 ... | guard | ... | identity | control page | guard |
//!   ^ aligned to its pages         each aligned to 2 MiB at least
//! ```
//!
//! The guards are mapped without access, so a write beyond a buffer's end faults instead of
//! reaching the next buffer.

use crate::segment::control_layout::ControlLayout;
use crate::segment::gpu_layout::gpu_pieces;
use crate::segment::identity::Identity;
use crate::segment::options::BufferOptions;
use hostbuf_protocol::range::{AgreedRange, Extent, Extents, FLAG_DUMP, FLAG_SMALL_PAGES, Name, Part};

const GUARD: u64 = 2 << 20;

/// The layout of a job's memory, from the address on which the ranks agree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// The agreed address, 0 before the agreement.
    pub address: u64,
    /// The number of bytes to reserve.
    pub length: u64,
    /// The alignment of the address in bytes.
    pub align: u64,
    /// The place of the identity.
    pub identity: Part,
    /// The place of the control page.
    pub control: Part,
    /// The places of the buffers.
    pub buffers: Vec<Extent>,
}

impl Layout {
    /// Returns the layout of `buffers`.
    #[must_use]
    pub fn of(buffers: &[BufferOptions]) -> Layout {
        let mut extents = Vec::with_capacity(buffers.len());
        let mut at = 0u64;
        let mut align = GUARD;
        for buffer in buffers {
            // The pages of Auto may become 1 GiB only if all lengths are multiples of that.
            let demand = buffer.demand();
            let pages = buffer.file_pages();
            let auto_1g = pages == crate::Pages::Auto && demand.has_whole(1 << 30);
            let page = if auto_1g { 1 << 30 } else { pages.size().max(GUARD) };
            align = align.max(page);
            at = at.next_multiple_of(page);
            let length = demand.length();
            let dump = if buffer.dump { FLAG_DUMP } else { 0 };
            let small = if pages == crate::Pages::Small { FLAG_SMALL_PAGES } else { 0 };
            let flags = u64::from(buffer.mmap_flags as u32) | dump | small;
            let name = Name::new(buffer.name.as_bytes());
            extents.push(Extent { part: Part { offset: at, length }, flags, name });
            at = (at + length).next_multiple_of(GUARD) + GUARD;
        }
        let sections = buffers.iter().map(BufferOptions::listed_ranges).sum();
        let identity = Part {
            offset: at,
            length: Identity::file_length(buffers.len(), sections, gpu_pieces(buffers).len()),
        };
        let control_length = ControlLayout::new(buffers.len()).length();
        let control = Part { offset: at + identity.length, length: control_length };
        let length = (control.offset + control.length).next_multiple_of(GUARD) + GUARD;
        Layout { address: 0, length, align, identity, control, buffers: extents }
    }

    /// Returns the agreed range, as messages contain it.
    #[must_use]
    pub fn range(&self) -> AgreedRange<'_> {
        let Layout { address, length, identity, control, .. } = *self;
        AgreedRange { address, length, identity, control, buffers: Extents::of(&self.buffers) }
    }
}

impl From<AgreedRange<'_>> for Layout {
    /// Returns the layout of a range whose address is agreed on.
    fn from(range: AgreedRange<'_>) -> Layout {
        let AgreedRange { address, length, identity, control, buffers } = range;
        Layout { address, length, align: 1, identity, control, buffers: buffers.iter().collect() }
    }
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
            let mut layout = Layout::of(&buffers);
            layout.address = 1 << 40;
            let mut end = 0;
            for (Extent { part, .. }, options) in layout.buffers.iter().zip(&buffers) {
                assert!(part.offset >= end && part.offset.is_multiple_of(GUARD));
                assert!(part.length >= options.size && layout.align >= pages.size());
                end = part.offset + part.length + 1;
            }
            assert!(layout.identity.offset >= end);
            assert!(layout.control.offset + layout.control.length < layout.length);
            assert!(layout.range().is_valid());
        }
    }
}
