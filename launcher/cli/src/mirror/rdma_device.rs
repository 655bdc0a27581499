//! The RDMA device of a mirror.

use hostbuf::{Error, Result};
use hostbuf_mirror::{MirrorReceiverOptions, MirrorSenderOptions};
use hostbuf_rdma::{FabricOptions, ReadDevice};

/// The RDMA device of a mirror.
pub(super) struct RdmaDevice(ReadDevice);

impl RdmaDevice {
    /// Opens the device `name`, or the nearest one if there is no name.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the remedy if this host has no device, [`Error::Invalid`] if it
    /// has no device of this name, and [`Error::Os`].
    pub(super) fn open(name: Option<&str>) -> Result<RdmaDevice> {
        let options = FabricOptions::default();
        let options = match name {
            Some(name) => options.device(name),
            None => options,
        };
        ReadDevice::open(options).map(RdmaDevice).map_err(|error| match error {
            Error::Unsupported { what, why } => Error::Unsupported {
                what: format!("--rdma: {what}"),
                why: format!("{why}; leave out --rdma to send and receive by TCP"),
            },
            other => other,
        })
    }

    /// Returns the name of the device.
    pub(super) fn name(&self) -> String {
        self.0.name()
    }

    /// Adds the device to the options of a receiver.
    pub(super) fn of_receiver(&self, options: MirrorReceiverOptions) -> MirrorReceiverOptions {
        options.rdma(self.0.clone())
    }

    /// Adds the device to the options of a sender.
    pub(super) fn of_sender(&self, options: MirrorSenderOptions) -> MirrorSenderOptions {
        options.rdma(self.0.clone())
    }
}
