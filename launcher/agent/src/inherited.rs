//! What an agent gets from whoever started it: a listening socket, and the process with which it ends.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use hostbuf::{Error, Result};
use hostbuf_os::process;

use super::spec::Spec;

/// A listening socket that was inherited.
#[allow(unsafe_code)]
pub(super) fn adopt(fd: RawFd) -> Result<OwnedFd> {
    let is_listener = |fd| {
        // SAFETY: only asks; a number that is no descriptor gives an error.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        nix::sys::socket::getsockopt(&borrowed, nix::sys::socket::sockopt::AcceptConn).unwrap_or(false)
    };
    if fd < 3 || !is_listener(fd) {
        return Err(Error::Invalid { what: format!("descriptor {fd} is no listening socket") });
    }
    // SAFETY: it is open, and whoever started us handed it over; nobody else here knows the number.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))
        .map_err(|e| Error::Os { doing: "setting close-on-exec".into(), source: e.into() })?;
    Ok(fd)
}

/// The process with which the agent ends, as a descriptor; an error when it has gone already.
pub(super) fn lifeline(spec: &Spec) -> Result<Option<OwnedFd>> {
    let gone = || Error::Attach { why: "the process that this agent serves has ended".into() };
    let (pid, known) = match spec.lifeline {
        Some(l) => (l.pid, Some(l.start)),
        None => (nix::unistd::getppid().as_raw(), None),
    };
    let fd = process::pidfd(pid).map_err(|e| match e.raw_os_error() {
        Some(libc::ESRCH) => gone(),
        Some(libc::EPERM | libc::ENOSYS) => Error::Unsupported {
            what: format!("watching process {pid}"),
            why: format!(
                "pidfd_open: {e}. A container's seccomp profile forbids it (allow pidfd_open there, as in docker run \
                 --security-opt seccomp=FILE, or update the container's runtime), or the kernel is older than Linux 5.3"
            ),
        },
        _ => Error::Os { doing: format!("watching process {pid}"), source: e },
    })?;
    // Only now is it certain that the descriptor means the process that is meant.
    let same = match known {
        Some(start) => process::start_time(pid) == Some(start),
        None => nix::unistd::getppid().as_raw() == pid,
    };
    if same { Ok(Some(fd)) } else { Err(gone()) }
}
