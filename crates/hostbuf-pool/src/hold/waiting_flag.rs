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

    /// States whether the producer waits. Before it sleeps it looks for a block once more, by
    /// [`are_unheld`](super::are_unheld), whose fence is that against the one of `must_wake`.
    pub(crate) fn set(&self, waits: bool) {
        self.waiting.store(u32::from(waits), Ordering::Relaxed);
    }

    /// Returns whether a reader that has ended a hold must wake the producer.
    pub(crate) fn must_wake(&self) -> bool {
        full_fence(FenceSite::Wake);
        self.waiting.load(Ordering::Relaxed) != 0
    }
}
