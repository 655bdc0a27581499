//! Frames with a stamp in every 4 KiB.

/// The length of a frame in bytes: 1920 x 1080 pixels of 4 bytes.
pub const FRAME_BYTES: usize = 1920 * 1080 * 4;
/// The distance of stamps in bytes.
const STAMP_INTERVAL: usize = 4096;

/// Writes the number of a frame into every 4 KiB.
pub fn stamp(frame: &mut [u8], number: u64) {
    for page in frame.chunks_exact_mut(STAMP_INTERVAL) {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
}

/// Returns the number of a frame, and the number of stamps that differ from it.
#[must_use]
pub fn torn_stamps(frame: &[u8]) -> (u64, usize) {
    let mut stamps = frame
        .chunks_exact(STAMP_INTERVAL)
        .map(|page| u64::from_le_bytes(page[..8].try_into().expect("8 bytes")));
    let first = stamps.next().unwrap_or_default();
    (first, stamps.filter(|stamp| *stamp != first).count())
}

/// Returns whether an address lies in a mapping of a pool's data file.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn is_in_pool(address: *const u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    maps.lines().filter(|line| line.contains("hostbuf-pool-data")).any(|line| {
        let (start, rest) = line.split_once('-').expect("a range");
        let end = rest.split(' ').next().expect("a range");
        let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
        (number(start)..number(end)).contains(&(address as usize))
    })
}
