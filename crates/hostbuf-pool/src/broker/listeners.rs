//! The sockets of a broker.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use hostbuf_os::{process, socket};
use nix::fcntl::{Flock, FlockArg};

use super::options::BrokerOptions;
use crate::error::PoolError;

/// The sockets of a broker. The socket with a path is removed at the end.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) sockets: Vec<OwnedFd>,
    _path: Option<PathSocket>,
}

/// A socket with a path, and the lock that makes this broker its only owner.
#[derive(Debug)]
struct PathSocket {
    path: PathBuf,
    _lock: Flock<fs::File>,
}

impl Listeners {
    /// Opens the sockets: those of the service manager, or that with the abstract name; and that
    /// with the path, if there is one.
    ///
    /// # Errors
    /// [`PoolError::Os`]: `EADDRINUSE` if this user has a broker already.
    pub(super) fn open(options: &BrokerOptions) -> Result<Listeners, PoolError> {
        match activated() {
            sockets if sockets.is_empty() => Listeners::open_own(options),
            sockets => Listeners::with_path(options, sockets),
        }
    }

    /// Opens the sockets of the options.
    ///
    /// # Errors
    /// As [`open`](Listeners::open).
    pub(super) fn open_own(options: &BrokerOptions) -> Result<Listeners, PoolError> {
        let doing = format!("listening on the socket @{} on {}", options.name, process::host_name());
        let socket = socket::listen_on(&options.name).map_err(|error| {
            let taken = error.raw_os_error() == Some(libc::EADDRINUSE);
            let doing = if taken { doing + " (this user has a broker already)" } else { doing };
            PoolError::os(doing)(error)
        })?;
        Listeners::with_path(options, vec![socket])
    }

    fn with_path(options: &BrokerOptions, mut sockets: Vec<OwnedFd>) -> Result<Listeners, PoolError> {
        let mut path = None;
        if let Some(wanted) = &options.path {
            let doing = format!("listening on the socket {}", wanted.display());
            let (listener, lock) = listen_at(wanted).map_err(PoolError::os(doing))?;
            sockets.push(listener);
            path = Some(PathSocket { path: wanted.clone(), _lock: lock });
        }
        Ok(Listeners { sockets, _path: path })
    }
}

impl Drop for PathSocket {
    fn drop(&mut self) {
        // A successor waits for the lock, which is released afterwards.
        let _ = fs::remove_file(&self.path);
    }
}

/// Takes over the sockets of the service manager (`sd_listen_fds(3)`).
#[allow(unsafe_code, reason = "takes over descriptors by their numbers")]
fn activated() -> Vec<OwnedFd> {
    const FIRST: i32 = 3;
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    if number("LISTEN_PID") != Some(std::process::id() as i32) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, 64);
    let mut sockets = Vec::new();
    for fd in FIRST..FIRST + count {
        // SAFETY: the service manager has passed these descriptors to this process alone.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let set = nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK));
        let close = nix::fcntl::FdFlag::FD_CLOEXEC;
        if set.is_ok() && nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFD(close)).is_ok() {
            sockets.push(socket);
        }
    }
    sockets
}

/// Listens at `path`. The lock file beside it says whose it is: a socket that a broker has left
/// behind is replaced.
fn listen_at(path: &Path) -> io::Result<(OwnedFd, Flock<fs::File>)> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let lock = fs::OpenOptions::new().create(true).append(true).open(beside(".lock"))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::Error::EWOULDBLOCK => io::Error::new(
            io::ErrorKind::AddrInUse,
            "another broker listens there, as the lock on the file beside it says",
        ),
        errno => errno.into(),
    })?;
    // Clients find the old socket or the new one, but never none.
    let new = beside(".new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = socket::listen_at(&new)?;
    fs::rename(&new, path)?;
    Ok((listener, lock))
}
