//! A forked child that must end.

#![allow(unsafe_code, reason = "forks a process that has threads")]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// The time after which a child hangs.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `work` in a forked child. Returns how the child has ended: with status 0 if `work` has
/// returned true. A child that hangs is killed.
#[must_use]
pub(super) fn in_forked_child(work: impl FnOnce() -> bool) -> WaitStatus {
    // SAFETY: the child does not return. It allocates, which glibc allows after a fork.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let status = match catch_unwind(AssertUnwindSafe(work)) {
                Ok(true) => 0,
                Ok(false) => 1,
                Err(_) => 2,
            };
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => {
            // SAFETY: it accesses no memory.
            let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.as_raw(), 0) };
            assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
            // SAFETY: a new descriptor.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
            let mut ended = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
            let limit = PollTimeout::try_from(LIMIT).expect("some seconds");
            if poll(&mut ended, limit).expect("it is open") == 0 {
                kill(child, Signal::SIGKILL).expect("it has not been waited for");
            }
            waitpid(child, None).expect("it is a child")
        }
    }
}
