//! The sockets of a broker.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use hostbuf_os::{process, socket};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{Backlog, SockType, UnixAddr, getsockname, getsockopt, listen, sockopt};

use super::options::BrokerOptions;
use crate::error::PoolError;

/// The largest length of a path in bytes: the socket is made under a longer name first.
const PATH_MAX: usize = 107 - ".new".len();

/// The sockets of a broker. The socket with a path is removed at the end.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) sockets: Vec<OwnedFd>,
    /// The addresses of the sockets: `@NAME` or a path.
    pub(super) addresses: Vec<String>,
    _path: Option<PathSocket>,
}

/// A socket with a path, and the lock that makes this broker its only owner.
#[derive(Debug)]
struct PathSocket {
    path: PathBuf,
    /// The identity of the socket.
    socket: FileIdentity,
    lock: Flock<fs::File>,
}

/// The device and the inode of a file.
type FileIdentity = (u64, u64);

fn identity(file: &fs::Metadata) -> FileIdentity {
    (file.dev(), file.ino())
}

impl Listeners {
    /// Opens the sockets: those of the service manager, or that with the abstract name if there are
    /// none; and that with the path, if the options have one.
    ///
    /// # Errors
    /// [`PoolError::Os`]: `AddrInUse` if this user has a broker already, which the message names.
    /// [`PoolError::Invalid`] for a name with control characters, for a path that is too long or is
    /// not a socket, and for descriptors of the service manager that are not listening sockets of
    /// packets.
    pub(super) fn open(options: &BrokerOptions, activated: Vec<OwnedFd>) -> Result<Listeners, PoolError> {
        if activated.is_empty() {
            return Listeners::open_own(options);
        }
        activated.iter().try_for_each(check_activated)?;
        Listeners::with_path(options, activated)
    }

    /// Opens the sockets of the options.
    ///
    /// # Errors
    /// As [`open`](Listeners::open).
    pub(super) fn open_own(options: &BrokerOptions) -> Result<Listeners, PoolError> {
        // Messages and lists contain the name, also those of other users.
        if options.name.chars().any(char::is_control) {
            let what = format!("invalid name {:?}: it has a control character", options.name);
            return Err(PoolError::Invalid { what });
        }
        let listener = socket::listen_on(&options.name).map_err(|error| {
            let doing = format!("listening on the socket @{} on {}", options.name, process::host_name());
            let there = || socket::connect(&options.name, Some(Duration::ZERO));
            PoolError::os(doing)(explain_taken(error, there, "another name (--name)"))
        })?;
        Listeners::with_path(options, vec![listener])
    }

    fn with_path(options: &BrokerOptions, mut sockets: Vec<OwnedFd>) -> Result<Listeners, PoolError> {
        let mut addresses: Vec<String> = sockets.iter().map(address).collect();
        let mut path = None;
        if let Some(wanted) = &options.path {
            check_path(wanted)?;
            let doing = format!("listening on the socket {}", wanted.display());
            let (listener, lock) = listen_at(wanted).map_err(|error| {
                let there = || socket::connect_at(wanted, Some(Duration::ZERO));
                PoolError::os(doing)(explain_taken(error, there, "another path (--path)"))
            })?;
            sockets.push(listener);
            addresses.push(wanted.display().to_string());
            let socket = fs::symlink_metadata(wanted).map_or((0, 0), |file| identity(&file));
            path = Some(PathSocket { path: wanted.clone(), socket, lock });
        }
        Ok(Listeners { sockets, addresses, _path: path })
    }
}

impl Drop for PathSocket {
    fn drop(&mut self) {
        let lock = beside(&self.path, ".lock");
        let is_at = |path: &Path, own| fs::symlink_metadata(path).is_ok_and(|file| identity(&file) == own);
        let is_own = self.lock.metadata().is_ok_and(|own| is_at(&lock, identity(&own)));
        // Without its lock file, another broker may have taken the path.
        if !is_own {
            return;
        }
        if is_at(&self.path, self.socket) {
            let _ = fs::remove_file(&self.path);
        }
        // It is still locked: a successor that has opened it looks whether it is still there.
        let _ = fs::remove_file(lock);
    }
}

/// Names the process that has an address, and the remedy.
fn explain_taken(
    error: io::Error,
    connect: impl FnOnce() -> io::Result<OwnedFd>,
    another: &str,
) -> io::Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return error;
    }
    let listener = connect().and_then(|connection| socket::peer(connection.as_fd()));
    let (who, end) = match listener {
        Ok(peer) if peer.pid > 0 => {
            let own = nix::unistd::geteuid().as_raw();
            let user = if peer.uid == own { String::new() } else { format!(" of user {}", peer.uid) };
            let who = format!("process {} ({}){user}", peer.pid, process::name(peer.pid));
            (who, format!("end process {}", peer.pid))
        }
        _ => ("another process".to_owned(), "end it".to_owned()),
    };
    let text = format!(
        "{who} listens there already: use that broker (hostbuf stat shows it), {end}, or give this one {another}"
    );
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

/// Checks a descriptor of the service manager, and sets the flags that the broker needs.
fn check_activated(listener: &OwnedFd) -> Result<(), PoolError> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let is_packet = getsockopt(listener, sockopt::SockType) == Ok(SockType::SeqPacket);
    let listens = getsockopt(listener, sockopt::AcceptConn) == Ok(true);
    if !is_packet || !listens || getsockname::<UnixAddr>(listener.as_raw_fd()).is_err() {
        return Err(PoolError::Invalid {
            what: format!(
                "descriptor {} of the service manager (LISTEN_FDS) is not a listening Unix socket of type SOCK_SEQPACKET: \
                 use ListenSequentialPacket= in the unit",
                listener.as_raw_fd()
            ),
        });
    }
    let taken_over = PoolError::os("taking over a socket of the service manager");
    // Clients see the process that has called it last.
    let listens_here = || listen(listener, Backlog::MAXCONN);
    fcntl(listener, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).and_then(|_| listens_here()).map_err(taken_over)
}

/// Describes the address of a socket: `@NAME` or a path.
fn address(listener: &OwnedFd) -> String {
    let address = getsockname::<UnixAddr>(listener.as_raw_fd()).ok();
    let path = address.as_ref().and_then(UnixAddr::path).map(|path| path.display().to_string());
    let name = || {
        let name = address.as_ref()?.as_abstract()?;
        Some(format!("@{}", String::from_utf8_lossy(name)))
    };
    path.or_else(name).unwrap_or_else(|| "a socket without an address".to_owned())
}

/// Returns the path of a file beside the socket.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Checks that a socket can have this path: nothing but a socket is replaced.
fn check_path(path: &Path) -> Result<(), PoolError> {
    let length = path.as_os_str().as_bytes().len();
    if length > PATH_MAX {
        let what = format!(
            "invalid path {}: it has {length} bytes, and that of a socket at most {PATH_MAX}",
            path.display()
        );
        return Err(PoolError::Invalid { what });
    }
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            let what = format!("invalid path {}: the file there is not a socket", path.display());
            Err(PoolError::Invalid { what })
        }
        _ => Ok(()),
    }
}

/// Listens at `path`. The lock file beside it says whose it is: a socket that a broker has left
/// behind is replaced.
fn listen_at(path: &Path) -> io::Result<(OwnedFd, Flock<fs::File>)> {
    let lock = lock_path(&beside(path, ".lock"))?;
    // Clients find the old socket or the new one, but never none.
    let new = beside(path, ".new");
    match fs::symlink_metadata(&new) {
        Ok(file) if file.file_type().is_socket() => fs::remove_file(&new)?,
        Ok(_) => return Err(not_ours(&new, "is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = socket::listen_at(&new)?;
    fs::rename(&new, path)?;
    Ok((listener, lock))
}

/// Returns the error for a file at a name that the broker needs.
fn not_ours(path: &Path, why: &str) -> io::Error {
    let text = format!("{} {why}: move that file, or give this broker another path (--path)", path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}

/// Opens a lock file: an empty one of this user. Other users could have placed anything there.
fn open_lock(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = options.create(true).append(true).mode(0o600).custom_flags(flags).open(path);
    let file = match opened {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) => {
            return Err(not_ours(path, "is not a lock file"));
        }
        opened => opened?,
    };
    let found = file.metadata()?;
    let is_own = found.is_file() && found.uid() == nix::unistd::geteuid().as_raw() && found.len() == 0;
    if is_own { Ok(file) } else { Err(not_ours(path, "is not an empty file of this user")) }
}

/// Locks the file, which the last owner may remove at the same time.
fn lock_path(path: &Path) -> io::Result<Flock<fs::File>> {
    loop {
        let file = open_lock(path)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            nix::Error::EWOULDBLOCK => io::Error::from(io::ErrorKind::AddrInUse),
            errno => errno.into(),
        })?;
        let locked = identity(&lock.metadata()?);
        match fs::symlink_metadata(path) {
            Ok(there) if identity(&there) == locked => return Ok(lock),
            // It has been removed since it was opened: the next owner makes another one.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}
