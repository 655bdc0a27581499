//! The frames of the benchmarks.

/// The size of a 1080p frame in RGBA, in bytes.
pub const FRAME: usize = 1920 * 1080 * 4;
/// The distance of the stamps in a frame, in bytes.
pub const PAGE: usize = 4096;

/// Writes a frame: every byte, with a stamp in each page.
pub fn fill(frame: &mut [u8], stamp: u64) {
    frame.fill(stamp as u8);
    stamp_pages(frame, stamp);
}

/// Writes a stamp into each page of a frame, and nothing else.
pub fn stamp_pages(frame: &mut [u8], stamp: u64) {
    for page in frame.chunks_mut(PAGE) {
        page[..8].copy_from_slice(&stamp.to_ne_bytes());
    }
}

/// Returns whether every page of a frame has the stamp.
#[must_use]
pub fn is_whole(frame: &[u8], stamp: u64) -> bool {
    frame.chunks(PAGE).all(|page| page[..8] == stamp.to_ne_bytes())
}
