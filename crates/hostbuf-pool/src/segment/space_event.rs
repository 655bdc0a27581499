//! The event on which a producer waits for a free block.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hostbuf_os::PrivateFd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The event on which a producer waits for a free block. It keeps a notification that comes before
/// the producer sleeps, so none is lost.
#[derive(Debug)]
pub(crate) struct SpaceEvent {
    fd: PrivateFd,
}

impl SpaceEvent {
    /// Makes an event.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub(crate) fn new() -> io::Result<SpaceEvent> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(SpaceEvent { fd: OwnedFd::from(EventFd::from_value_and_flags(0, flags)?).into() })
    }

    /// Takes over the descriptor of another process.
    ///
    /// # Errors
    /// `InvalidInput` if it is not that of an event. Without `/proc` nothing is checked.
    pub(crate) fn from_fd(fd: PrivateFd) -> io::Result<SpaceEvent> {
        match std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
            Ok(target) if target.to_str() != Some("anon_inode:[eventfd]") => {
                let why = format!("{} is no event descriptor", target.display());
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            _ => Ok(SpaceEvent { fd }),
        }
    }

    /// Wakes the producer.
    pub(crate) fn notify(&self) {
        // A counter that is full has woken the producer already.
        let _ = nix::unistd::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Waits at most `limit` for a notification, and takes it.
    ///
    /// # Errors
    /// As `poll(2)`.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        let timeout = limit.map_or(PollTimeout::NONE, |limit| {
            // Rounded up, so that a short rest is not waited for by turning.
            let limit = limit + Duration::from_micros(999);
            PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Nothing to take after the time limit, or if another thread has taken it.
        let _ = nix::unistd::read(&self.fd, &mut [0; 8]);
        Ok(())
    }

    /// Returns a copy of the descriptor.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub(crate) fn try_clone_fd(&self) -> io::Result<PrivateFd> {
        self.fd.try_clone()
    }
}

impl AsFd for SpaceEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_before_the_wait_is_kept() {
        let event = SpaceEvent::new().unwrap();
        let other = SpaceEvent::from_fd(event.try_clone_fd().unwrap()).unwrap();
        other.notify();
        other.notify();
        event.wait(None).unwrap();
        let begun = std::time::Instant::now();
        event.wait(Some(Duration::from_millis(3))).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(3), "two notifications are one");
    }

    #[test]
    fn another_file_is_refused() {
        let (read, _write) = std::io::pipe().unwrap();
        assert!(SpaceEvent::from_fd(OwnedFd::from(read).into()).is_err());
    }
}
