//! The locks of rings and transfers, and the atomics of the slots: the standard library's, or those
//! of tests.
//!
//! The unit tests count the locks that are taken. Under `--cfg loom` the atomics are loom's, which
//! explores every interleaving of a few threads, with a bounded number of preemptions, and every
//! value that the memory model allows a load to return.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(any(not(test), loom))]
pub(crate) use std::sync::Mutex;

#[cfg(all(test, not(loom)))]
pub(crate) use crate::tests::CountedMutex as Mutex;
