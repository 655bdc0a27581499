//! Waiting for sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// An event that ends the waiting of a thread.
#[derive(Debug)]
pub(crate) struct WakeEvent {
    event: EventFd,
}

impl WakeEvent {
    /// Makes an event.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub(crate) fn new() -> io::Result<WakeEvent> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(WakeEvent { event: EventFd::from_value_and_flags(0, flags)? })
    }

    /// Ends the present wait, or the next one.
    pub(crate) fn notify(&self) {
        // A counter that is full has woken the thread already.
        let _ = self.event.write(1);
    }

    /// Takes the notifications.
    pub(crate) fn clear(&self) {
        let _ = self.event.read();
    }
}

/// Waits until a descriptor has one of `events`, or the event was notified, and returns what the
/// descriptor has. Returns no events at `until`.
///
/// # Errors
/// As `poll(2)`.
pub(crate) fn wait(
    descriptor: Option<(BorrowedFd<'_>, PollFlags)>,
    wake: &WakeEvent,
    until: Option<Instant>,
) -> io::Result<PollFlags> {
    let mut list = vec![PollFd::new(wake.event.as_fd(), PollFlags::POLLIN)];
    list.extend(descriptor.map(|(fd, events)| PollFd::new(fd, events)));
    let timeout = until.map_or(PollTimeout::NONE, |until| {
        // Rounded up, so that the last millisecond is not waited for by polling.
        let left = until.saturating_duration_since(Instant::now());
        let milliseconds = left.as_micros().div_ceil(1000);
        i32::try_from(milliseconds)
            .ok()
            .and_then(|left| PollTimeout::try_from(left).ok())
            .unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut list, timeout) {
        Ok(_) => Ok(list.get(1).and_then(PollFd::revents).unwrap_or(PollFlags::empty())),
        Err(nix::Error::EINTR) => Ok(PollFlags::empty()),
        Err(errno) => Err(errno.into()),
    }
}
