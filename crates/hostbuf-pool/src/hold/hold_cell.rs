//! The holds of one reader on one block.

use super::block_state::BlockState;
use super::block_word::BlockWord;
use super::sync::{AtomicU64, FenceSite, Ordering, full_fence};

/// The holds of one reader on one block, in the reader's row. The reader's process writes it; after
/// the reader's death the broker does.
#[repr(C)]
pub(crate) struct HoldCell {
    /// The number of holds.
    count: AtomicU64,
    /// One more than the highest generation of which a hold has ended, 0 if there is none.
    finished: AtomicU64,
}

/// The reason why a reader cannot hold a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldRefused {
    /// The producer has retired this generation, and may have reused the block.
    Gone,
    /// The producer has not published this generation.
    NotPublished,
}

impl HoldCell {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> HoldCell {
        HoldCell { count: AtomicU64::new(0), finished: AtomicU64::new(0) }
    }

    /// Holds generation `generation` of the block with the word `word`. Afterwards all that the
    /// producer wrote before publishing it is visible.
    ///
    /// # Errors
    /// [`HoldRefused`]; nothing is held then.
    pub(crate) fn hold(&self, word: &BlockWord, generation: u64) -> Result<(), HoldRefused> {
        self.hold_while(BlockState::Published, word, generation)
    }

    /// Holds generation `generation` of the block with the word `word` if the block is in `state`:
    /// published, or being written.
    ///
    /// # Errors
    /// [`HoldRefused`]; nothing is held then.
    pub(crate) fn hold_while(
        &self,
        state: BlockState,
        word: &BlockWord,
        generation: u64,
    ) -> Result<(), HoldRefused> {
        self.count.fetch_add(1, Ordering::Relaxed);
        full_fence(FenceSite::Hold);
        let refused = match word.load() {
            (found_state, found) if found_state == state && found == generation => return Ok(()),
            (BlockState::Retired | BlockState::Free, found) if found == generation => HoldRefused::Gone,
            (_, found) if found > generation => HoldRefused::Gone,
            _ => HoldRefused::NotPublished,
        };
        self.undo();
        Err(refused)
    }

    /// Adds a hold to a block that this reader holds already.
    pub(crate) fn hold_again(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends one hold of `generation`. The producer may overwrite the block from now on.
    pub(crate) fn release(&self, generation: u64) {
        self.finish(generation);
        self.undo();
    }

    /// Takes one hold back. After the broker has cleared the cell, nothing is left to take back.
    fn undo(&self) {
        if self.count.fetch_sub(1, Ordering::Release) == 0 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// States that this reader does not need `generation`, or any one before it.
    pub(crate) fn finish(&self, generation: u64) {
        self.finished.fetch_max(generation.saturating_add(1), Ordering::Release);
    }

    /// Returns the number of holds.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns whether this reader has finished with `generation`, or any one behind it.
    pub(crate) fn has_finished(&self, generation: u64) -> bool {
        self.finished.load(Ordering::Acquire) > generation
    }

    /// Removes all holds of a reader whose process has ended.
    pub(crate) fn clear(&self) {
        self.count.store(0, Ordering::Release);
        self.finished.store(0, Ordering::Release);
    }
}

/// Returns whether none of `cells`, those of all readers on a block, has a hold. The caller has set
/// the word of the block to a state in which no reader gets it. After `true` the caller may
/// overwrite the block.
pub(crate) fn are_unheld<'c>(mut cells: impl Iterator<Item = &'c HoldCell>) -> bool {
    full_fence(FenceSite::Reuse);
    cells.all(|cell| cell.count() == 0)
}
