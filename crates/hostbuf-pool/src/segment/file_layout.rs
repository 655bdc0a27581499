//! The offsets in tables and rows, and the lengths of the files of a segment.

use super::geometry::SegmentGeometry;

/// The size of a block's word in the table in bytes: a cache line.
pub(super) const WORD_BYTES: usize = 64;
/// The size of a block's header in the table in bytes.
pub(super) const HEADER_BYTES: usize = 256;
/// The size of a block's cell in a row in bytes.
pub(super) const CELL_BYTES: usize = 16;
/// The size of the handle of an event in bytes.
pub(super) const HANDLE_BYTES: usize = 64;
/// The offset of the words in a table.
pub(super) const WORDS: usize = 4096;
/// The offset of the cells in a row.
pub(super) const CELLS: usize = 4096;

/// Returns the offset of the headers in a table.
pub(super) fn headers(geometry: SegmentGeometry) -> usize {
    WORDS + geometry.blocks() as usize * WORD_BYTES
}

/// Returns the length of a table.
pub(super) fn table_bytes(geometry: SegmentGeometry) -> u64 {
    let end = headers(geometry) + geometry.blocks() as usize * HEADER_BYTES;
    (end as u64).next_multiple_of(4096)
}

/// Returns the length of a row.
pub(super) fn row_bytes(geometry: SegmentGeometry) -> u64 {
    let end = CELLS + geometry.blocks() as usize * CELL_BYTES;
    (end as u64).next_multiple_of(4096)
}

/// Returns the length of the file of the handles of events.
pub(super) fn event_bytes(geometry: SegmentGeometry) -> u64 {
    (u64::from(geometry.blocks()) * HANDLE_BYTES as u64).next_multiple_of(4096)
}
