//! The number of a block in zenoh.

use zenoh::shm::SegmentID;

/// The number of bits of a block's number.
const BLOCK_BITS: u32 = 8;

/// A block, as zenoh identifies it. zenoh drops a reader's reference to a segment with each buffer,
/// so each block is a segment for zenoh: then the references tell which blocks a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockAddress {
    /// The number of the pool's segment.
    segment: u32,
    /// The number of the block in that segment.
    block: u32,
}

impl BlockAddress {
    /// The largest number of blocks of a segment.
    pub(crate) const BLOCKS_MAX: u32 = 1 << BLOCK_BITS;

    /// Makes the address of a block, or `None` if zenoh's 32 bits do not suffice.
    pub(crate) fn new(segment: u32, block: u32) -> Option<BlockAddress> {
        let fits = segment < 1 << (u32::BITS - BLOCK_BITS) && block < BlockAddress::BLOCKS_MAX;
        fits.then_some(BlockAddress { segment, block })
    }

    /// Returns zenoh's number of the block.
    pub(crate) fn to_id(self) -> SegmentID {
        self.segment << BLOCK_BITS | self.block
    }

    /// Returns the address of a block that has this number in zenoh.
    pub(crate) fn from_id(id: SegmentID) -> BlockAddress {
        BlockAddress { segment: id >> BLOCK_BITS, block: id % BlockAddress::BLOCKS_MAX }
    }

    /// Returns the number of the pool's segment.
    pub(crate) fn segment(self) -> u32 {
        self.segment
    }

    /// Returns the number of the block in its segment.
    pub(crate) fn block(self) -> u32 {
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_zenoh_or_are_refused() {
        for (segment, block) in [(0, 0), (1, 255), ((1 << 24) - 1, 255), (77, 3)] {
            let address = BlockAddress::new(segment, block).unwrap();
            assert_eq!(BlockAddress::from_id(address.to_id()), address);
        }
        assert_eq!(BlockAddress::new(1 << 24, 0), None);
        assert_eq!(BlockAddress::new(0, 256), None);
    }
}
