//! The atomics of the protocol: the standard library's, or loom's under `--cfg loom`.
//!
//! loom explores every interleaving of a few threads, with a bounded number of preemptions, and
//! every value that the memory model allows a load to return. It models SeqCst fences but not the
//! single order of SeqCst accesses, so the protocol uses fences.

#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(all(test, loom))]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(all(test, loom))]
pub(super) use modelled::{full_fence, without_fence};

/// The places of the protocol that have a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceSite {
    /// A reader, between its count and the state of the block.
    Hold,
    /// A producer, between the state of the block and the counts.
    Reuse,
    /// A producer, between its statement that it waits and all that readers state.
    Wait,
    /// A reader, between the end of its hold and the statement that the producer waits.
    Wake,
}

/// Orders all accesses before it before all accesses after it, in one order for all threads.
#[cfg(not(all(test, loom)))]
#[inline]
pub(super) fn full_fence(_: FenceSite) {
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod modelled {
    use std::cell::Cell;

    use super::{FenceSite, Ordering};

    std::thread_local! {
        // All threads of a model run in one thread of the operating system.
        static MISSING: Cell<Option<FenceSite>> = const { Cell::new(None) };
    }

    pub(in crate::hold) fn full_fence(site: FenceSite) {
        if MISSING.get() != Some(site) {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// Runs a model in which the fence of one place is missing.
    pub(in crate::hold) fn without_fence(site: FenceSite, run: impl FnOnce()) {
        MISSING.set(Some(site));
        run();
    }
}
