//! The descriptors that a service manager passes to a broker (`sd_listen_fds(3)`).

use std::env;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::stored_segment::{StoredSegment, is_store_name};

/// The number of the first passed descriptor.
const FIRST: i32 = 3;
/// The largest number of descriptors that are taken over.
const MOST: i32 = 4096;

/// The descriptors that a service manager passes to a broker.
#[derive(Debug, Default)]
pub(super) struct PassedDescriptors {
    /// The sockets: all descriptors that are not from the descriptor store.
    pub(super) sockets: Vec<OwnedFd>,
    /// The segments of an earlier broker.
    pub(super) segments: Vec<StoredSegment>,
}

impl PassedDescriptors {
    /// Takes over the descriptors. Only the first call of a process gets any.
    #[allow(unsafe_code, reason = "takes over descriptors by their numbers")]
    pub(super) fn take() -> PassedDescriptors {
        static IS_TAKEN: AtomicBool = AtomicBool::new(false);
        let number = |name: &str| env::var(name).ok()?.parse::<i32>().ok();
        let mut passed = PassedDescriptors::default();
        if number("LISTEN_PID") != Some(std::process::id() as i32) || IS_TAKEN.swap(true, Ordering::Relaxed) {
            return passed;
        }
        let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, MOST);
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        for fd in FIRST..FIRST + count {
            let name = names.next().unwrap_or_default();
            // SAFETY: the service manager has passed these descriptors to this process, and no
            // other code of it takes them.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let close = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
            if nix::fcntl::fcntl(&fd, close).is_err() {
                // It is not open.
                std::mem::forget(fd);
            } else if !is_store_name(name) {
                passed.sockets.push(fd);
            } else if let Some(segment) = StoredSegment::take(name, fd) {
                passed.segments.push(segment);
            } else {
                tracing::warn!(name, "a stored descriptor that is no segment");
            }
        }
        passed
    }
}
