//! The statement of a producer that it waits for a block.

use super::sync::{AtomicU32, FenceSite, Ordering, full_fence};

/// The statement of a producer that it waits for a block, in the block table.
#[repr(C, align(64))]
pub(crate) struct WaitingFlag {
    waiting: AtomicU32,
}

impl WaitingFlag {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> WaitingFlag {
        WaitingFlag { waiting: AtomicU32::new(0) }
    }

    /// States that the producer waits. Before it sleeps, the producer looks once more for a block
    /// that no reader holds, and which generations the readers have finished.
    pub(crate) fn raise(&self) {
        self.waiting.store(1, Ordering::Relaxed);
        full_fence(FenceSite::Wait);
    }

    /// Takes the statement back.
    pub(crate) fn lower(&self) {
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// Returns whether a reader that has ended a hold must wake the producer.
    pub(crate) fn must_wake(&self) -> bool {
        full_fence(FenceSite::Wake);
        self.waiting.load(Ordering::Relaxed) != 0
    }
}
