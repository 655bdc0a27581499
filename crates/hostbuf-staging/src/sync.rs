//! The atomics of the slots: the standard library's, or loom's under `--cfg loom`.
//!
//! loom explores every interleaving of a few threads, with a bounded number of preemptions, and
//! every value that the memory model allows a load to return.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
