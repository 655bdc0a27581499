//! The errors of devices.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// An error of a device. Clones share the driver's error.
#[derive(Clone, Debug)]
pub struct DeviceError {
    device: String,
    doing: String,
    has_started: bool,
    is_lost: bool,
    source: Arc<dyn Error + Send + Sync>,
}

impl DeviceError {
    /// Makes the error of an operation that has not touched any memory.
    pub fn refused(
        device: impl Into<String>,
        doing: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> DeviceError {
        let source = Arc::from(source.into());
        DeviceError { device: device.into(), doing: doing.into(), has_started: false, is_lost: false, source }
    }

    /// Makes the error of an operation that the device has begun, such as a copy that failed.
    #[must_use]
    pub fn started(mut self) -> DeviceError {
        self.has_started = true;
        self
    }

    /// Makes the error one of a device that this process has lost. It is not known any more whether
    /// the device still accesses memory.
    #[must_use]
    pub fn lost(mut self) -> DeviceError {
        (self.has_started, self.is_lost) = (true, true);
        self
    }

    /// Returns the description of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns whether the device may have accessed memory for the failed operation.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// Returns whether this process cannot use the device any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.doing, self.device, self.source)
    }
}

impl Error for DeviceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
