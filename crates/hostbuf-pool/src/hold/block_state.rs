//! The states of a block.

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// The block has no content, and no reader holds it.
    Free,
    /// The producer writes the content.
    Writing,
    /// Readers may hold the block.
    Published,
    /// Readers that hold the block keep it; no further reader gets it.
    Retired,
}

impl BlockState {
    /// The number of bits of an encoded state.
    pub(super) const BITS: u32 = 2;

    /// Returns the encoded state.
    pub(super) const fn to_bits(self) -> u64 {
        match self {
            BlockState::Free => 0,
            BlockState::Writing => 1,
            BlockState::Published => 2,
            BlockState::Retired => 3,
        }
    }

    /// Decodes the lowest bits of `bits`.
    pub(super) const fn from_bits(bits: u64) -> BlockState {
        match bits & ((1 << BlockState::BITS) - 1) {
            0 => BlockState::Free,
            1 => BlockState::Writing,
            2 => BlockState::Published,
            _ => BlockState::Retired,
        }
    }
}
