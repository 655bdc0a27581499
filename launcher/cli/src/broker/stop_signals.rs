//! The signals that end a broker, as a descriptor.

use std::os::fd::{AsFd, BorrowedFd};

use hostbuf::{Error, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::ignored_signal::is_ignored;

/// The signals that end a broker, blocked. The descriptor is readable when one has come.
#[derive(Debug)]
pub(crate) struct StopSignals {
    descriptor: SignalFd,
}

impl StopSignals {
    /// Blocks the signals in this thread and in those that it starts.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn block() -> Result<StopSignals> {
        let os = |doing: &str| {
            let doing = doing.to_owned();
            move |errno: nix::Error| Error::Os { doing, source: errno.into() }
        };
        // A signalfd returns blocked signals also if they are ignored, as SIGHUP is under nohup.
        let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
        let signals = SigSet::from_iter(ends.into_iter().filter(|signal| !is_ignored(*signal)));
        signals.thread_block().map_err(os("blocking signals"))?;
        let descriptor = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(os("opening a signal descriptor"))?;
        Ok(StopSignals { descriptor })
    }
}

impl AsFd for StopSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
