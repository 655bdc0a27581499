//! The state of a slot: which threads may access its memory and its record.
//!
//! ```text
//!            open            offer                finish (last piece)
//!   Free ----------> owned ----------> Pieces ------------------------> owned
//!    ^                 |                                                  |
//!    |                 | start_copy                            start_copy |
//!    |   free          v                poll                              |
//!    +-------- owned <---------- Copying <--------------------------------+
//! ```
//!
//! A slot that nobody owns is free, has pieces that threads claim, or is being copied by a device.
//! All other states are those of one owner, an [`OwnedSlot`], which alone writes the record. A
//! thread that has claimed a piece reads the record, and accesses the memory of that piece only.
//! There is no lock: every transition is one atomic operation on one word.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const STAGE_BITS: u32 = 2;
const PIECE_BITS: u32 = 15;
/// The largest number of pieces of a slot.
pub(crate) const MAX_PIECES: u32 = (1 << PIECE_BITS) - 1;

/// The stages of a slot, as they are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotStage {
    Free = 0,
    Owned = 1,
    Pieces = 2,
    Copying = 3,
}

/// A decoded word. The generation is the number of turns that have ended; it makes each word of a
/// slot occur once in 4 billion turns, so a thread that was delayed cannot mistake one turn for
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    generation: u32,
    stage: SlotStage,
    /// The number of pieces that are claimed.
    claimed: u32,
    pieces: u32,
}

impl Word {
    fn encode(self) -> u64 {
        u64::from(self.generation) << 32
            | u64::from(self.claimed) << (STAGE_BITS + PIECE_BITS)
            | u64::from(self.pieces) << STAGE_BITS
            | self.stage as u64
    }

    fn decode(bits: u64) -> Word {
        let field = |shift: u32, width: u32| (bits >> shift) as u32 & ((1 << width) - 1);
        let stage = match field(0, STAGE_BITS) {
            0 => SlotStage::Free,
            1 => SlotStage::Owned,
            2 => SlotStage::Pieces,
            _ => SlotStage::Copying,
        };
        Word {
            generation: (bits >> 32) as u32,
            stage,
            claimed: field(STAGE_BITS + PIECE_BITS, PIECE_BITS),
            pieces: field(STAGE_BITS, PIECE_BITS),
        }
    }
}

/// The state of a slot.
#[derive(Debug)]
pub(crate) struct SlotWord {
    word: AtomicU64,
    /// The number of pieces that are not finished.
    unfinished: AtomicU32,
}

/// The right to write the record of a slot, and to access all of its memory. It is given up by one
/// of its methods; dropping it leaves the slot unusable for ever.
#[must_use]
#[derive(Debug)]
pub(crate) struct OwnedSlot<'s> {
    state: &'s SlotWord,
    generation: u32,
}

/// The right to access the memory of one piece, and to read the record.
#[must_use]
#[derive(Debug)]
pub(crate) struct ClaimedPiece<'s> {
    state: &'s SlotWord,
    generation: u32,
    /// The number of the piece in the slot.
    pub(crate) number: u32,
}

impl SlotWord {
    /// Makes a free slot.
    pub(crate) fn new() -> SlotWord {
        SlotWord { word: AtomicU64::new(0), unfinished: AtomicU32::new(0) }
    }

    fn load(&self) -> Word {
        Word::decode(self.word.load(Ordering::Relaxed))
    }

    fn exchange(&self, from: Word, to: Word) -> bool {
        // Acquire, for what the last owner wrote; a thread that only claims publishes nothing.
        let (from, to) = (from.encode(), to.encode());
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes a slot that is in `stage`, unless another thread does.
    fn take(&self, stage: SlotStage) -> Option<OwnedSlot<'_>> {
        let word = self.load();
        let owned = Word { stage: SlotStage::Owned, ..word };
        (word.stage == stage && self.exchange(word, owned))
            .then_some(OwnedSlot { state: self, generation: word.generation })
    }

    /// Takes a free slot for its next turn.
    pub(crate) fn open(&self) -> Option<OwnedSlot<'_>> {
        self.take(SlotStage::Free)
    }

    /// Takes a slot that a device copies, to ask the device whether it has finished.
    pub(crate) fn poll(&self) -> Option<OwnedSlot<'_>> {
        self.take(SlotStage::Copying)
    }

    /// Returns whether a device copies the slot, and nobody asks the device now.
    pub(crate) fn is_copying(&self) -> bool {
        self.load().stage == SlotStage::Copying
    }

    /// Returns whether the slot is free.
    pub(crate) fn is_free(&self) -> bool {
        self.load().stage == SlotStage::Free
    }

    /// Claims a piece that no thread has claimed.
    pub(crate) fn claim(&self) -> Option<ClaimedPiece<'_>> {
        loop {
            let word = self.load();
            if word.stage != SlotStage::Pieces || word.claimed == word.pieces {
                return None;
            }
            if self.exchange(word, Word { claimed: word.claimed + 1, ..word }) {
                let number = word.claimed;
                return Some(ClaimedPiece { state: self, generation: word.generation, number });
            }
        }
    }
}

impl<'s> OwnedSlot<'s> {
    fn leave(self, word: Word) {
        // Release, for the record and the memory.
        self.state.word.store(word.encode(), Ordering::Release);
    }

    fn word(&self, stage: SlotStage) -> Word {
        Word { generation: self.generation, stage, claimed: 0, pieces: 0 }
    }

    /// Offers the slot in `pieces` pieces, which threads claim.
    ///
    /// # Panics
    /// If there is no piece, or more than [`MAX_PIECES`].
    pub(crate) fn offer(self, pieces: u32) {
        assert!((1..=MAX_PIECES).contains(&pieces), "a slot has 1 to {MAX_PIECES} pieces");
        self.state.unfinished.store(pieces, Ordering::Relaxed);
        let word = Word { pieces, ..self.word(SlotStage::Pieces) };
        self.leave(word);
    }

    /// Leaves the slot to a device that copies it.
    pub(crate) fn start_copy(self) {
        let word = self.word(SlotStage::Copying);
        self.leave(word);
    }

    /// Ends the turn of the slot.
    pub(crate) fn free(self) {
        let generation = self.generation.wrapping_add(1);
        let word = Word { generation, ..self.word(SlotStage::Free) };
        self.leave(word);
    }
}

impl<'s> ClaimedPiece<'s> {
    /// Ends the access to the piece. The thread that finishes the last piece gets the slot.
    pub(crate) fn finish(self) -> Option<OwnedSlot<'s>> {
        // Release, for the memory of this piece; acquire, for that of all other pieces.
        let is_last = self.state.unfinished.fetch_sub(1, Ordering::AcqRel) == 1;
        // All pieces are claimed, so no other thread changes the word until the owner does.
        is_last.then_some(OwnedSlot { state: self.state, generation: self.generation })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_its_stages() {
        let slot = SlotWord::new();
        assert!(slot.claim().is_none() && slot.poll().is_none() && slot.is_free());
        let owned = slot.open().unwrap();
        assert!(slot.open().is_none() && slot.claim().is_none() && !slot.is_free());
        owned.offer(2);
        let (first, second) = (slot.claim().unwrap(), slot.claim().unwrap());
        assert_eq!((first.number, second.number), (0, 1));
        assert!(slot.claim().is_none());
        assert!(second.finish().is_none());
        first.finish().unwrap().start_copy();
        assert!(slot.is_copying() && slot.claim().is_none() && slot.open().is_none());
        let polled = slot.poll().unwrap();
        assert!(!slot.is_copying() && slot.poll().is_none());
        polled.start_copy();
        slot.poll().unwrap().free();
        assert!(slot.is_free());
        assert_eq!(slot.open().unwrap().generation, 1);
    }

    #[test]
    fn words_are_what_they_were() {
        let words = [
            Word { generation: 0, stage: SlotStage::Free, claimed: 0, pieces: 0 },
            Word { generation: u32::MAX, stage: SlotStage::Copying, claimed: MAX_PIECES, pieces: MAX_PIECES },
            Word { generation: 7, stage: SlotStage::Pieces, claimed: 3, pieces: 8 },
        ];
        for word in words {
            assert_eq!(Word::decode(word.encode()), word);
        }
    }
}
