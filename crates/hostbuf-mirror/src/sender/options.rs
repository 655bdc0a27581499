//! The options of a sender.

use std::time::Duration;

use crate::error::MirrorError;
use crate::time_limit::check_time;
use crate::wire::MAX_WINDOW;

/// The options of a [`MirrorSender`](crate::MirrorSender).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorSenderOptions {
    /// The number of frames that may be sent before the first of them is acknowledged, from 1 to
    /// 64. The sender holds a block for each of them.
    pub window: u32,
    /// The time for which one attempt to connect may take.
    pub connect_timeout: Duration,
    /// The device from which receivers that have one too read the bytes of frames by RDMA. `None`
    /// means that all bytes go by TCP.
    #[cfg(feature = "rdma")]
    pub rdma: Option<hostbuf_rdma::ReadDevice>,
}

impl MirrorSenderOptions {
    /// The default of [`window`](MirrorSenderOptions::window).
    pub const WINDOW: u32 = 4;
    /// The default of [`connect_timeout`](MirrorSenderOptions::connect_timeout).
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

    /// Makes the default options.
    #[must_use]
    pub fn new() -> MirrorSenderOptions {
        MirrorSenderOptions {
            window: MirrorSenderOptions::WINDOW,
            connect_timeout: MirrorSenderOptions::CONNECT_TIMEOUT,
            #[cfg(feature = "rdma")]
            rdma: None,
        }
    }

    /// Sets the number of frames that may be sent before the first of them is acknowledged.
    #[must_use]
    pub fn window(mut self, frames: u32) -> MirrorSenderOptions {
        self.window = frames;
        self
    }

    /// Sets the time for which one attempt to connect may take.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> MirrorSenderOptions {
        self.connect_timeout = limit;
        self
    }

    /// Sets the device for RDMA. Each segment is registered once with a device, so senders and
    /// receivers of a process should share one.
    #[cfg(feature = "rdma")]
    #[must_use]
    pub fn rdma(mut self, device: hostbuf_rdma::ReadDevice) -> MirrorSenderOptions {
        self.rdma = Some(device);
        self
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`MirrorError::Invalid`].
    pub(super) fn check(&self) -> Result<(), MirrorError> {
        let window = self.window;
        if (1..=MAX_WINDOW).contains(&window) {
            return check_time("connect_timeout", self.connect_timeout);
        }
        let what = format!("invalid window of {window} frames: expected 1 to {MAX_WINDOW}");
        Err(MirrorError::Invalid { what })
    }
}

impl Default for MirrorSenderOptions {
    fn default() -> MirrorSenderOptions {
        MirrorSenderOptions::new()
    }
}
