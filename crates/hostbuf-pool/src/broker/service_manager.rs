//! The messages of a broker to the service manager that has started it (`sd_notify(3)`).

use std::env;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket,
};

/// The variable with the address of the service manager's socket: a path, or `@` and a name.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Returns the process of the service manager, if one has started this process.
pub(super) fn process() -> Option<i32> {
    env::var_os(VARIABLE).map(|_| nix::unistd::getppid().as_raw())
}

/// The socket of the service manager.
#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: OwnedFd,
    address: UnixAddr,
}

impl ServiceManager {
    /// Returns the service manager, if one has started this process.
    pub(super) fn find() -> Option<ServiceManager> {
        let address = env::var_os(VARIABLE)?;
        let address = match address.as_bytes() {
            [b'@', name @ ..] => UnixAddr::new_abstract(name),
            path => UnixAddr::new(Path::new(std::ffi::OsStr::from_bytes(path))),
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let opened = address.and_then(|address| {
            let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
            Ok(ServiceManager { socket, address })
        });
        opened.inspect_err(|error| tracing::warn!(%error, "no connection to the service manager")).ok()
    }

    /// Sends a message, and a descriptor with it.
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN` if the service manager does not read.
    pub(super) fn send(&self, message: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let raw: Vec<i32> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[] } else { &rights[..] };
        let text = [IoSlice::new(message.as_bytes())];
        let flags = MsgFlags::MSG_NOSIGNAL;
        sendmsg(self.socket.as_raw_fd(), &text, control, flags, Some(&self.address))?;
        Ok(())
    }
}
