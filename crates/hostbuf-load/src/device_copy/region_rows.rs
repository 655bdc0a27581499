//! Rows at equal distances in the region of a load, and their place on a device.

use crate::slice::StridedPart;

/// The least number of rows that the device copies as rows (a 2-D copy). Fewer are copies of their
/// own: one call of the driver starts many of them, but only one copy of rows. On an H100, copying
/// four rows of 64 KiB as one 2-D copy is 1.18 times as fast as four single copies
/// (docs/figures.md).
const LEAST_ROWS: u64 = 4;

/// Rows at equal distances in the region of a load, and their place on a device. All numbers are
/// bytes, except the height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionRows {
    /// The offset of the first row in the region.
    pub(super) offset: u64,
    /// The distance from a row to the next in the region.
    pub(super) pitch: u64,
    /// The length of a row.
    pub(super) width: u64,
    /// The number of rows.
    pub(super) height: u64,
    /// The device's address of the first row.
    pub(super) address: u64,
    /// The distance from a row to the next on the device.
    pub(super) address_pitch: u64,
}

impl RegionRows {
    /// Makes the rows of a part of a tensor that begins at offset `start` of the region. The slice
    /// begins at `address` on the device.
    pub(super) fn new(part: &StridedPart, start: u64, address: u64) -> RegionRows {
        RegionRows {
            offset: start + part.offset,
            pitch: part.pitch,
            width: part.width,
            height: part.height,
            address: address + part.target_offset,
            address_pitch: part.target_pitch,
        }
    }

    /// Returns whether the device copies the rows as rows, and not one by one. Rows that overlap
    /// cannot be copied as rows.
    pub(super) fn is_rows(&self) -> bool {
        self.height >= LEAST_ROWS && self.width <= self.pitch.min(self.address_pitch)
    }

    /// Returns the number of bytes of the region from the beginning of the first row to the end of
    /// the last one.
    pub(super) fn extent(&self) -> u64 {
        self.height.saturating_sub(1).saturating_mul(self.pitch).saturating_add(self.width)
    }

    /// Divides the rows at the borders of windows of `window_bytes` bytes: calls `each` with the
    /// number of each window, and the rows that lie within it. A row that lies in several windows
    /// is divided.
    pub(super) fn divide(self, window_bytes: u64, mut each: impl FnMut(u64, RegionRows)) {
        let mut rest = self;
        while rest.height > 0 {
            let window = rest.offset / window_bytes;
            let window_end = (window + 1) * window_bytes;
            let rows = match window_end.checked_sub(rest.offset + rest.width) {
                // The rows that begin and end in this window.
                Some(room) => {
                    let after_first = room.checked_div(rest.pitch).unwrap_or(rest.height);
                    let rows = rest.height.min(after_first.saturating_add(1));
                    each(window, RegionRows { height: rows, ..rest });
                    rows
                }
                None => {
                    rest.divide_row(window_bytes, &mut each);
                    1
                }
            };
            // The place after the last row is not used.
            rest.offset = rest.offset.wrapping_add(rest.pitch.wrapping_mul(rows));
            rest.address = rest.address.wrapping_add(rest.address_pitch.wrapping_mul(rows));
            rest.height -= rows;
        }
    }

    /// Divides the first row at the borders of windows.
    fn divide_row(&self, window_bytes: u64, each: &mut impl FnMut(u64, RegionRows)) {
        let (mut offset, end) = (self.offset, self.offset + self.width);
        while offset < end {
            let window = offset / window_bytes;
            let width = end.min((window + 1) * window_bytes) - offset;
            let address = self.address + (offset - self.offset);
            each(
                window,
                RegionRows { offset, pitch: width, width, height: 1, address, address_pitch: width },
            );
            offset += width;
        }
    }
}
