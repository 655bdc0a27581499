//! The parts of files that lie in a window of the region.

use std::ops::Range;

use crate::table::{SourceFile, TensorTable};

/// A part of a file that lies in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WindowPiece {
    /// The index of the file.
    pub(super) file: usize,
    /// The bytes of the file.
    pub(super) bytes: Range<u64>,
    /// The offset of the first of them in the region.
    pub(super) region_offset: u64,
}

/// Returns the bytes of the region in a window.
pub(super) fn window(number: u64, window_bytes: u64, region_bytes: u64) -> Range<u64> {
    let start = number.saturating_mul(window_bytes).min(region_bytes);
    start..start.saturating_add(window_bytes).min(region_bytes)
}

/// Returns the parts of files in a window, each of at most `piece_bytes`, in the order of the
/// region.
pub(super) fn pieces(table: &TensorTable, window: Range<u64>, piece_bytes: u64) -> Vec<WindowPiece> {
    let files = table.files();
    let first = files.partition_point(|file| file.region_end() <= window.start);
    let in_window = files[first..].iter().take_while(|file| file.region_offset < window.end);
    let mut pieces = Vec::new();
    for (file, source) in (first..).zip(in_window) {
        let Range { start, end } = overlap(source, &window);
        let mut at = start;
        while at < end {
            let next = at.saturating_add(piece_bytes).min(end);
            let offset = source.region_offset;
            pieces.push(WindowPiece { file, bytes: at - offset..next - offset, region_offset: at });
            at = next;
        }
    }
    pieces
}

/// Returns the part of a file's place that lies in a window.
fn overlap(file: &SourceFile, window: &Range<u64>) -> Range<u64> {
    file.region_offset.max(window.start)..file.region_end().min(window.end)
}
