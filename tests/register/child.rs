//! Forked children with a time limit: a child that hangs is killed, and the test fails.

#![allow(unsafe_code, reason = "forks, and ends the child without its destructors")]

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hostbuf_os::process::pidfd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// The time limit of a child, in milliseconds.
const LIMIT: u16 = 10_000;

/// The end of a child process.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The child succeeded.
    Well,
    /// The child detected a fault, or failed.
    Wrong,
    /// The child was killed after the time limit.
    Hung,
}

/// Runs a check in a child. The check returns true for success.
pub fn does(act: impl FnOnce() -> bool) -> End {
    // SAFETY: the child runs what the test gives it, and ends. The C library's own locks are good
    // in it.
    let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
        let well = catch_unwind(AssertUnwindSafe(act)).unwrap_or(false);
        // SAFETY: runs nothing of the parent's.
        unsafe { libc::_exit(i32::from(!well)) }
    };
    let ends = pidfd(child.as_raw()).unwrap();
    let mut waited = [PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
    let ended = poll(&mut waited, PollTimeout::from(LIMIT)).unwrap() == 1;
    if !ended {
        kill(child, Signal::SIGKILL).unwrap();
    }
    match waitpid(child, None).unwrap() {
        WaitStatus::Exited(_, 0) => End::Well,
        _ if ended => End::Wrong,
        _ => End::Hung,
    }
}

/// Drops the capability to lock memory without limit, which root has, for the calling thread.
pub fn obey_limits() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    // The effective, permitted and inheritable sets, in two halves of 32 capabilities each.
    let none = [0u32; 6];
    let header = Header { version: 0x2008_0522, pid: 0 };
    // SAFETY: both are as the kernel wants them, and of this thread alone.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) }, 0);
}
