//! A device without a thread, which allocates nothing and takes no lock.

#![allow(unsafe_code, reason = "copies between ranges that the ring guarantees")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{CopyDevice, DeviceCopy, DeviceError};

/// The number of questions after which a copy has ended.
const QUESTIONS: u32 = 2;

/// A device that copies at once, in the thread that asks for it, and says so when it is asked for
/// the second time. It counts the calls.
#[derive(Debug, Default)]
pub(super) struct PolledDevice {
    /// The number of calls that have started copies.
    pub(super) calls: AtomicU64,
    /// The number of questions whether a copy has ended, and of waits for one.
    pub(super) questions: AtomicU64,
}

/// An event: the number of questions that are answered with no.
#[derive(Debug, Default)]
pub(super) struct PolledEvent(AtomicU32);

impl PolledDevice {
    /// Copies, and records an event.
    ///
    /// # Safety
    /// Both ranges of each copy are valid, as [`CopyDevice`] demands.
    unsafe fn copy(
        &self,
        copies: &[DeviceCopy],
        done: &PolledEvent,
        ends: impl Fn(&DeviceCopy) -> (*const u8, *mut u8),
    ) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for copy in copies {
            let (from, to) = ends(copy);
            // SAFETY: the caller guarantees both ranges.
            unsafe { std::ptr::copy_nonoverlapping(from, to, copy.bytes) };
        }
        done.0.store(QUESTIONS - 1, Ordering::Release);
    }
}

impl CopyDevice for PolledDevice {
    type Event = PolledEvent;

    fn name(&self) -> String {
        "a polled device".into()
    }

    fn new_event(&self) -> Result<PolledEvent, DeviceError> {
        Ok(PolledEvent::default())
    }

    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], done: &PolledEvent) -> Result<(), DeviceError> {
        let ends = |copy: &DeviceCopy| (copy.host.cast_const(), copy.address as *mut u8);
        // SAFETY: the caller guarantees both ranges.
        unsafe { self.copy(copies, done, ends) };
        Ok(())
    }

    unsafe fn copy_to_host(&self, copies: &[DeviceCopy], done: &PolledEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees both ranges.
        unsafe { self.copy(copies, done, |copy| (copy.address as *const u8, copy.host)) };
        Ok(())
    }

    fn is_complete(&self, event: &PolledEvent) -> Result<bool, DeviceError> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let less = |rest: u32| rest.checked_sub(1);
        Ok(event.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_err())
    }

    fn wait(&self, event: &PolledEvent) -> Result<(), DeviceError> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        event.0.store(0, Ordering::Release);
        Ok(())
    }
}
