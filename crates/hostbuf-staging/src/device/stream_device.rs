//! Devices whose streams have an order with transfers.

use super::copy_device::CopyDevice;
use super::device_error::DeviceError;

/// A function that begins a transfer, or ends it with the error of the work before. The device may
/// call it in a thread that must not use the device.
pub type BeginTransfer = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

/// A device with streams that the program gives work.
pub trait StreamDevice: CopyDevice {
    /// A stream of the program.
    type Stream: ?Sized;
    /// An object for which a stream waits until it is dropped. It may be dropped before the stream
    /// comes to wait.
    type Hold: Send + Sync + 'static;

    /// Calls `begin` once, when all work that `stream` has now has ended, and never while an error
    /// is returned.
    ///
    /// # Errors
    /// The driver's, also if the work of the stream is being captured.
    fn begin_after(&self, stream: &Self::Stream, begin: BeginTransfer) -> Result<(), DeviceError>;

    /// Lets all later work on `stream` wait until the returned object is dropped.
    ///
    /// # Errors
    /// The driver's. The stream does not wait then.
    fn hold(&self, stream: &Self::Stream) -> Result<Self::Hold, DeviceError>;
}
