//! Rows of bytes at equal distances.

use std::ops::Range;

/// Rows of bytes at equal distances in a tensor, and their place in a slice. All numbers are bytes,
/// except the height. One call of `cuMemcpy2DAsync` copies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "cuMemcpy2D")]
pub struct StridedPart {
    /// The offset of the first row from the beginning of the tensor.
    pub offset: u64,
    /// The distance from a row to the next in the tensor.
    pub pitch: u64,
    /// The length of a row, at least 1.
    pub width: u64,
    /// The number of rows, at least 1.
    pub height: u64,
    /// The offset of the first row from the beginning of the slice.
    pub target_offset: u64,
    /// The distance from a row to the next in the slice.
    pub target_pitch: u64,
}

impl StridedPart {
    /// Makes the part of all of a tensor of `bytes` bytes. `None` if it is empty.
    pub(crate) fn whole(bytes: u64) -> Option<StridedPart> {
        let (offset, target_offset) = (0, 0);
        let row =
            StridedPart { offset, pitch: bytes, width: bytes, height: 1, target_offset, target_pitch: bytes };
        (bytes > 0).then_some(row)
    }

    /// Returns the part, as one row if its rows have no bytes between them on both sides.
    pub(super) fn merged(self) -> StridedPart {
        if self.width == self.pitch && self.width == self.target_pitch {
            let width = self.width * self.height;
            return StridedPart { pitch: width, target_pitch: width, width, height: 1, ..self };
        }
        self
    }

    /// Returns whether the part is one range of bytes in the tensor.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.height == 1 || self.width == self.pitch
    }

    /// Returns the ends of the last row in the tensor and in the slice. A number that is too large
    /// for a memory is the largest one.
    pub(crate) fn ends(&self) -> (u64, u64) {
        let end = |offset: u64, pitch: u64| {
            offset.saturating_add((self.height - 1).saturating_mul(pitch)).saturating_add(self.width)
        };
        (end(self.offset, self.pitch), end(self.target_offset, self.target_pitch))
    }

    /// Returns each row: its bytes in the tensor, and its offset in the slice.
    pub fn rows(&self) -> impl Iterator<Item = (Range<u64>, u64)> + use<> {
        let part = *self;
        (0..part.height).map(move |row| {
            let start = part.offset + row * part.pitch;
            (start..start + part.width, part.target_offset + row * part.target_pitch)
        })
    }
}
