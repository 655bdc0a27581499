//! The word of a block: its state and its generation.

use super::block_state::BlockState;
use super::sync::{AtomicU64, Ordering};

/// The state and the generation of a block, in the block table. The producer writes it; after the
/// producer's death the broker does.
#[repr(C, align(64))]
pub(crate) struct BlockWord {
    word: AtomicU64,
}

impl BlockWord {
    #[cfg(all(test, loom))]
    pub(crate) fn new(state: BlockState, generation: u64) -> BlockWord {
        BlockWord { word: AtomicU64::new(encode(state, generation)) }
    }

    /// Sets the state and the generation. All that this thread has written before is visible to a
    /// reader that sees them.
    pub(crate) fn set(&self, state: BlockState, generation: u64) {
        self.word.store(encode(state, generation), Ordering::Release);
    }

    /// Returns the state and the generation, and makes all visible that was written before them.
    pub(crate) fn load(&self) -> (BlockState, u64) {
        let word = self.word.load(Ordering::Acquire);
        (BlockState::from_bits(word), word >> BlockState::BITS)
    }
}

/// Encodes a word. A block that is taken once a nanosecond reaches the last generation after 146
/// years.
fn encode(state: BlockState, generation: u64) -> u64 {
    generation << BlockState::BITS | state.to_bits()
}
