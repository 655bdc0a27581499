//! The operations of a device that a ring needs.

#![allow(unsafe_code, reason = "the caller of a copy guarantees both ranges")]

use super::device_error::DeviceError;

/// A device that copies between registered host memory and its own memory, in the order of the
/// requests.
pub trait CopyDevice: Send + Sync + 'static {
    /// A point in the work of the device. An event that was never recorded counts as complete.
    type Event: Send + Sync;

    /// Describes the device, for messages: `GPU 0`.
    fn name(&self) -> String;

    /// Makes an event.
    ///
    /// # Errors
    /// The driver's.
    fn new_event(&self) -> Result<Self::Event, DeviceError>;

    /// Starts a copy from host memory to the device's address `to`, and records `done` behind it.
    ///
    /// # Errors
    /// The driver's. The copy may have been started all the same, unless the error
    /// [says that it was not](DeviceError::has_started).
    ///
    /// # Safety
    /// Until `done` is complete, `from` is readable host memory that nothing writes to, and as many
    /// bytes at `to` are memory of the device that nothing else uses.
    unsafe fn copy_to_device(
        &self,
        from: *const [u8],
        to: u64,
        done: &Self::Event,
    ) -> Result<(), DeviceError>;

    /// Starts a copy from the device's address `from` to host memory, and records `done` behind it.
    ///
    /// # Errors
    /// As [`copy_to_device`](CopyDevice::copy_to_device).
    ///
    /// # Safety
    /// Until `done` is complete, `to` is writable host memory that nothing else accesses, and as
    /// many bytes at `from` are memory of the device that nothing writes to.
    unsafe fn copy_to_host(&self, from: u64, to: *mut [u8], done: &Self::Event) -> Result<(), DeviceError>;

    /// Returns whether the device has completed what was recorded, without waiting.
    ///
    /// # Errors
    /// The driver's, also that of the copy.
    fn is_complete(&self, event: &Self::Event) -> Result<bool, DeviceError>;

    /// Waits until the device has completed what was recorded.
    ///
    /// # Errors
    /// As [`is_complete`](CopyDevice::is_complete).
    fn wait(&self, event: &Self::Event) -> Result<(), DeviceError>;
}
