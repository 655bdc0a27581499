//! The inheritance of an agent: a listening socket, and the process with which the agent ends.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use hostbuf::{AttachError, Error, Result};
use hostbuf_os::process;

use super::spec::Spec;

/// Takes ownership of an inherited listening socket.
#[allow(unsafe_code, reason = "takes over an inherited descriptor")]
pub(super) fn adopt(fd: RawFd) -> Result<OwnedFd> {
    let is_listener = |fd| {
        // SAFETY: the call only queries the descriptor; an invalid number causes an error.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        nix::sys::socket::getsockopt(&borrowed, nix::sys::socket::sockopt::AcceptConn).unwrap_or(false)
    };
    if fd < 3 || !is_listener(fd) {
        return Err(Error::Invalid { what: format!("descriptor {fd} is not a listening socket") });
    }
    // SAFETY: the descriptor is open, the parent process has handed it over, and nothing else in
    // this process uses the number.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))
        .map_err(|e| Error::Os { doing: "setting close-on-exec".into(), source: e.into() })?;
    Ok(fd)
}

/// Returns a pidfd of the process with which the agent ends.
///
/// # Errors
/// [`Error::Attach`] if that process has ended already.
pub(super) fn watched_process(spec: &Spec) -> Result<Option<OwnedFd>> {
    let gone =
        || Error::from(AttachError::AgentGone { why: "the process that this agent serves has ended".into() });
    let (pid, known) = match spec.watched_process {
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
    // The number may have been reused before the pidfd was opened.
    let same = match known {
        Some(start) => process::start_time(pid) == Some(start),
        None => nix::unistd::getppid().as_raw() == pid,
    };
    if same { Ok(Some(fd)) } else { Err(gone()) }
}
