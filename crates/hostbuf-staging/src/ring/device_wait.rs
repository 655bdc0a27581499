//! The one thread of a ring that waits for the device, or polls copies of streams.

use std::sync::atomic::{AtomicU8, Ordering};

/// No thread waits for the device.
const NOBODY: u8 = 0;
/// A thread looks for the oldest copy.
const SEARCHING: u8 = 1;
/// A thread waits for the device, and notifies the others afterwards.
const WAITING: u8 = 2;

/// The state of the one thread of a ring that waits for the device, or of the one that polls copies
/// of streams.
#[derive(Debug, Default)]
pub(super) struct DeviceWait(AtomicU8);

/// The result of a request to wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The calling thread looks for the oldest copy, and no other thread does.
    Alone,
    /// Another thread looks for the oldest copy.
    BesideSearch,
    /// Another thread waits for a copy.
    BesideWait,
}

impl DeviceWait {
    /// Lets the calling thread look for the oldest copy, unless another thread does.
    pub(super) fn begin(&self) -> Begun {
        match self.0.compare_exchange(NOBODY, SEARCHING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => Begun::Alone,
            Err(SEARCHING) => Begun::BesideSearch,
            Err(_) => Begun::BesideWait,
        }
    }

    /// States that the thread that looked waits for a copy now.
    pub(super) fn found(&self) {
        self.0.store(WAITING, Ordering::Release);
    }

    /// States that the thread does not look or wait any more.
    pub(super) fn end(&self) {
        self.0.store(NOBODY, Ordering::Release);
    }
}
