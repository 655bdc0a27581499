//! The host as the device of a ring.

#![allow(unsafe_code, reason = "implements an unsafe trait function by calling nothing")]

use super::copy_device::CopyDevice;
use super::device_copy::DeviceCopy;
use super::device_error::DeviceError;

/// The host as the device of a ring: the threads of the ring read files into memory of the host,
/// and write them from there, as to and from a GPU. The slots of the ring are used only where the
/// alignment of a file demands it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostDevice;

impl HostDevice {
    /// Makes the device.
    #[must_use]
    pub fn new() -> HostDevice {
        HostDevice
    }

    fn refused(self) -> DeviceError {
        DeviceError::refused(self.name(), "starting a copy", "the threads of a ring copy themselves")
    }
}

impl CopyDevice for HostDevice {
    type Event = ();

    const IS_HOST: bool = true;

    fn name(&self) -> String {
        "the host".into()
    }

    fn new_event(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy_to_device(&self, _copies: &[DeviceCopy], _done: &()) -> Result<(), DeviceError> {
        Err(self.refused())
    }

    unsafe fn copy_to_host(&self, _copies: &[DeviceCopy], _done: &()) -> Result<(), DeviceError> {
        Err(self.refused())
    }

    fn is_complete(&self, _event: &()) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn wait(&self, _event: &()) -> Result<(), DeviceError> {
        Ok(())
    }
}
