//! The descriptors that a service manager passes to a broker (`sd_listen_fds(3)`).

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of the first passed descriptor.
const FIRST: i32 = 3;
/// The largest number of descriptors that are taken over.
const MOST: i32 = 4096;

/// The descriptors that a service manager passes to a broker, each with its name.
#[derive(Debug, Default)]
pub(super) struct PassedDescriptors {
    /// The descriptors without the name of a stored file: the sockets.
    pub(super) sockets: Vec<OwnedFd>,
}

impl PassedDescriptors {
    /// Takes over the descriptors. Only the first call of a process gets any.
    #[allow(unsafe_code, reason = "takes over descriptors by their numbers")]
    pub(super) fn take() -> PassedDescriptors {
        static IS_TAKEN: AtomicBool = AtomicBool::new(false);
        let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
        let mut passed = PassedDescriptors::default();
        if number("LISTEN_PID") != Some(std::process::id() as i32) || IS_TAKEN.swap(true, Ordering::Relaxed) {
            return passed;
        }
        let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, MOST);
        for fd in FIRST..FIRST + count {
            // SAFETY: the service manager has passed these descriptors to this process, and no
            // other code of it takes them.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let close = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
            match nix::fcntl::fcntl(&fd, close) {
                Ok(_) => passed.sockets.push(fd),
                // It is not open.
                Err(_) => std::mem::forget(fd),
            }
        }
        passed
    }
}
