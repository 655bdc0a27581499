//! The operations of a device that a ring needs.

#![allow(unsafe_code, reason = "the caller of a copy guarantees both sides")]

use super::device_copy::DeviceCopy;
use super::device_error::DeviceError;
use super::device_rows::DeviceRows;

/// A device that copies between registered host memory and its own memory. The copies of one event
/// are done in the order of the requests; those of different events may end in another order.
pub trait CopyDevice: Send + Sync + 'static {
    /// A point in the work of the device. An event that was never recorded counts as complete.
    type Event: Send + Sync;

    /// True if the memory of the device is
    /// [memory of the host](super::DeviceBuffer::is_host_memory).
    /// Bytes are then read into it and written from it by the threads of a ring, and the device
    /// copies nothing.
    const IS_HOST: bool = false;

    /// Describes the device, for messages: `GPU 0`.
    fn name(&self) -> String;

    /// Makes an event.
    ///
    /// # Errors
    /// The driver's.
    fn new_event(&self) -> Result<Self::Event, DeviceError>;

    /// Starts copies from host memory to the device, and records `done` after them.
    ///
    /// # Errors
    /// The driver's. Copies may have been started all the same, unless the error
    /// [says that they were not](DeviceError::has_started); `done` is recorded after those that
    /// were, or else the error is that of a [lost](DeviceError::is_lost) device.
    ///
    /// # Safety
    /// Until `done` is complete, the host memory is readable and nothing writes to it, and the
    /// memory of the device is used by nothing else.
    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], done: &Self::Event) -> Result<(), DeviceError>;

    /// Starts copies of rows from host memory to the device, and records `done` after them. The
    /// default starts a copy for each row; a device that copies rows by one request overrides it.
    ///
    /// # Errors
    /// As [`copy_to_device`](CopyDevice::copy_to_device).
    ///
    /// # Safety
    /// As for [`copy_to_device`](CopyDevice::copy_to_device), for each of the rows.
    unsafe fn copy_rows_to_device(&self, rows: &[DeviceRows], done: &Self::Event) -> Result<(), DeviceError> {
        let copies: Vec<DeviceCopy> = rows.iter().flat_map(DeviceRows::copies).collect();
        // SAFETY: the caller guarantees both sides of each row.
        unsafe { self.copy_to_device(&copies, done) }
    }

    /// Starts copies from the device to host memory, and records `done` after them.
    ///
    /// # Errors
    /// As [`copy_to_device`](CopyDevice::copy_to_device).
    ///
    /// # Safety
    /// Until `done` is complete, the host memory is writable and nothing else accesses it, and
    /// nothing writes to the memory of the device.
    unsafe fn copy_to_host(&self, copies: &[DeviceCopy], done: &Self::Event) -> Result<(), DeviceError>;

    /// Runs `copy`, which starts a short copy and asks whether it is complete, in a thread of the
    /// program: the device may have to change something for that thread. The default just runs it.
    fn in_thread_of_program<R>(&self, copy: impl FnOnce() -> R) -> R
    where
        Self: Sized,
    {
        copy()
    }

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
