//! Devices whose streams have an order with transfers.

#![allow(unsafe_code, reason = "the caller of a copy guarantees both sides")]

use std::sync::Arc;

use super::copy_device::CopyDevice;
use super::copy_direction::CopyDirection;
use super::device_copy::DeviceCopy;
use super::device_error::DeviceError;

/// A function that begins a transfer, or ends it with the error of the work before. The device may
/// call it in a thread that must not use the device.
pub type BeginTransfer = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

/// A function that is called when something has changed. The device may call it in a thread that
/// must not use the device.
pub type NotifyRing = Box<dyn FnOnce() + Send>;

/// A device with streams on which the program enqueues work.
pub trait StreamDevice: CopyDevice {
    /// A stream of the program.
    type Stream: ?Sized;
    /// The copies of a transfer that such a stream does.
    type Copies: StreamCopies + 'static;

    /// Calls `begin` once, when all work that `stream` has now has ended, and never while an error
    /// is returned.
    ///
    /// # Errors
    /// The driver's, including if the work of the stream is being captured.
    fn begin_after(&self, stream: &Self::Stream, begin: BeginTransfer) -> Result<(), DeviceError>;

    /// Makes a number of copies for `stream`. Nothing is enqueued yet.
    ///
    /// # Errors
    /// The driver's, including if the work of the stream is being captured.
    fn new_copies(
        &self,
        stream: &Self::Stream,
        direction: CopyDirection,
        count: u32,
    ) -> Result<Self::Copies, DeviceError>;

    /// Enqueues the copies that were not enqueued on `stream`, or only the first ones of them if
    /// there is no room for all. Returns whether all were enqueued. One thread at a time calls
    /// this, always for the same stream, and then [`enqueue_end`](StreamDevice::enqueue_end) once.
    /// Copies that have ended need no room.
    ///
    /// # Errors
    /// The driver's, which is from then on also that of each copy that was not enqueued.
    fn enqueue_copies(&self, stream: &Self::Stream, copies: &Arc<Self::Copies>) -> Result<bool, DeviceError>;

    /// Lets all later work on the stream wait until the copies [end](StreamCopies::end). The device
    /// calls `executed` when the stream has executed the end, even after an error.
    ///
    /// # Errors
    /// The driver's. The stream does not wait then.
    fn enqueue_end(
        &self,
        stream: &Self::Stream,
        copies: &Arc<Self::Copies>,
        executed: NotifyRing,
    ) -> Result<(), DeviceError>;
}

/// The copies that a stream does in its order, each when it was started.
pub trait StreamCopies: Send + Sync {
    /// Starts the next copy, and returns its number.
    ///
    /// # Panics
    /// If all copies were started.
    ///
    /// # Safety
    /// As for [`CopyDevice::copy_to_device`], until the copy [has ended](StreamCopies::has_ended).
    unsafe fn start(&self, copy: &DeviceCopy) -> u32;

    /// Returns whether a copy has ended. This neither waits nor takes a lock of the driver: a
    /// thread may have it, and wait for the stream.
    ///
    /// # Errors
    /// The error of the device, of a [lost](DeviceError::is_lost) one if the copy may still access
    /// memory.
    fn has_ended(&self, number: u32) -> Result<bool, DeviceError>;

    /// Lets the stream go on. Copies that were not started copy nothing; all others have ended or
    /// failed. Another thread may be enqueuing copies.
    fn end(&self);
}
