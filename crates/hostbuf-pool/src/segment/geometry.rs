//! The geometry of a segment.

use crate::error::InvalidGeometry;

/// The unit of the length of a block, and the alignment of its content, in bytes.
pub(crate) const BLOCK_UNIT: u64 = 4096;
/// The smallest number of blocks of a segment: one is read while another is written.
const MIN_BLOCKS: u32 = 2;
/// The largest number of blocks of a segment.
pub(crate) const MAX_BLOCKS: u32 = 1 << 16;
/// The largest number of readers of a segment.
pub(crate) const MAX_READERS: u32 = 32;
/// The largest length of a block: of 2^46 bytes, [`MAX_BLOCKS`] still have a length in 63 bits.
const MAX_BLOCK_BYTES: u64 = 1 << 46;

/// The sizes of a segment's files. A process gets them by message from its broker, and compares
/// them with the sealed lengths of the files: nothing is computed from what is in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentGeometry {
    /// The length of a block in bytes, a multiple of [`BLOCK_UNIT`].
    block_bytes: u64,
    /// The number of blocks.
    blocks: u32,
    /// The number of readers that may attach.
    readers: u32,
}

impl SegmentGeometry {
    /// Makes the geometry of `blocks` blocks of at least `block_bytes` bytes for `readers` readers.
    ///
    /// # Errors
    /// [`InvalidGeometry`].
    pub(crate) fn new(
        block_bytes: u64,
        blocks: u32,
        readers: u32,
    ) -> Result<SegmentGeometry, InvalidGeometry> {
        if block_bytes == 0 || block_bytes > MAX_BLOCK_BYTES {
            return Err(InvalidGeometry::BlockBytes { requested: block_bytes, most: MAX_BLOCK_BYTES });
        }
        if !(MIN_BLOCKS..=MAX_BLOCKS).contains(&blocks) {
            return Err(InvalidGeometry::Blocks { requested: blocks, most: MAX_BLOCKS });
        }
        if !(1..=MAX_READERS).contains(&readers) {
            return Err(InvalidGeometry::Readers { requested: readers, most: MAX_READERS });
        }
        Ok(SegmentGeometry { block_bytes: block_bytes.next_multiple_of(BLOCK_UNIT), blocks, readers })
    }

    /// Returns the length of a block in bytes.
    pub(crate) fn block_bytes(self) -> u64 {
        self.block_bytes
    }

    /// Returns the number of blocks.
    pub(crate) fn blocks(self) -> u32 {
        self.blocks
    }

    /// Returns the number of readers that may attach.
    pub(crate) fn readers(self) -> u32 {
        self.readers
    }

    /// Returns the number of bytes of all blocks.
    pub(crate) fn data_bytes(self) -> u64 {
        self.block_bytes * u64::from(self.blocks)
    }

    /// Returns the offset of a block in the data file.
    ///
    /// # Panics
    /// If there is no such block.
    pub(crate) fn block_offset(self, block: u32) -> u64 {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        self.block_bytes * u64::from(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_whole_units_and_never_overflow() {
        let geometry = SegmentGeometry::new(8_294_400, 3, 8).unwrap();
        assert_eq!((geometry.block_bytes(), geometry.data_bytes()), (8_294_400, 3 * 8_294_400));
        assert_eq!(SegmentGeometry::new(1, 2, 1).unwrap().block_bytes(), BLOCK_UNIT);
        let largest = SegmentGeometry::new(MAX_BLOCK_BYTES, MAX_BLOCKS, MAX_READERS).unwrap();
        assert!(i64::try_from(largest.data_bytes()).is_ok());
        assert_eq!(largest.block_offset(MAX_BLOCKS - 1), largest.data_bytes() - MAX_BLOCK_BYTES);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (block_bytes, blocks, readers) in [
            (0, 2, 1),
            (MAX_BLOCK_BYTES + 1, 2, 1),
            (u64::MAX, 2, 1),
            (1, 1, 1),
            (1, MAX_BLOCKS + 1, 1),
            (1, 2, 0),
            (1, 2, MAX_READERS + 1),
        ] {
            assert!(SegmentGeometry::new(block_bytes, blocks, readers).is_err());
        }
    }
}
