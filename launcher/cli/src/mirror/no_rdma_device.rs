//! The RDMA device of a mirror: none, in a build without the feature `rdma`.

use hostbuf::Result;
use hostbuf_mirror::{MirrorReceiverOptions, MirrorSenderOptions};

use super::rdma_program;

// The name under which the other files know the type of a build with RDMA.
pub(super) use self::NoRdmaDevice as RdmaDevice;

/// The RDMA device of a mirror. There are no values of this type.
pub(super) enum NoRdmaDevice {}

impl NoRdmaDevice {
    /// Replaces this process by the command with RDMA, which opens the device.
    ///
    /// # Errors
    /// The errors of [`rdma_program::exec`].
    pub(super) fn open(_name: Option<&str>) -> Result<NoRdmaDevice> {
        match rdma_program::exec()? {}
    }

    pub(super) fn name(&self) -> String {
        match *self {}
    }

    pub(super) fn of_receiver(&self, _options: MirrorReceiverOptions) -> MirrorReceiverOptions {
        match *self {}
    }

    pub(super) fn of_sender(&self, _options: MirrorSenderOptions) -> MirrorSenderOptions {
        match *self {}
    }
}
