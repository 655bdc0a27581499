//! Abstract unix sockets of type SOCK_SEQPACKET. A socket file would remain after SIGKILL; an
//! abstract name ends with its last descriptor. Any user can bind any abstract name, so both sides
//! ask the kernel for the credentials of the other.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockopt, listen,
    recv, sendmsg, socket, sockopt,
};

use hostbuf_raw::syscall as raw;

/// Listens on the abstract name `name`.
///
/// # Errors
/// As `bind(2)`: `EADDRINUSE` if another socket has the name.
pub fn listen_on(name: &str) -> io::Result<OwnedFd> {
    listen_on_address(&UnixAddr::new_abstract(name.as_bytes())?)
}

/// Listens at `path`, for clients in other network namespaces. The path stays after the end of the
/// socket.
///
/// # Errors
/// As `bind(2)`: `EADDRINUSE` if the path exists.
pub fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    listen_on_address(&UnixAddr::new(path)?)
}

fn listen_on_address(address: &UnixAddr) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    bind(fd.as_raw_fd(), address)?;
    listen(&fd, Backlog::new(1024)?)?;
    Ok(fd)
}

/// Accepts the next connection. Returns `None` if none is pending.
///
/// # Errors
/// As `accept4(2)`.
#[allow(unsafe_code, reason = "takes over descriptors and reads structures of the kernel")]
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    match nix::sys::socket::accept4(listener.as_raw_fd(), flags) {
        // SAFETY: accept4 returned a new descriptor.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(nix::Error::EAGAIN | nix::Error::EINTR | nix::Error::ECONNABORTED) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Connects to the abstract name `name`. The connection is blocking. `limit` is the time for which
/// the call waits for a listener that accepts no connections, e.g. one of a stopped process; `None`
/// means no limit.
///
/// # Errors
/// As `connect(2)`: `ECONNREFUSED` if no socket listens on the name; `TimedOut` at the limit.
pub fn connect(name: &str, limit: Option<Duration>) -> io::Result<OwnedFd> {
    connect_to(&UnixAddr::new_abstract(name.as_bytes())?, limit)
}

/// Connects to the socket at `path`. The connection is blocking. `limit` is as for [`connect`].
///
/// # Errors
/// As `connect(2)`: `ENOENT` if there is no such path, `ECONNREFUSED` if no socket listens there;
/// `TimedOut` at the limit.
pub fn connect_at(path: &Path, limit: Option<Duration>) -> io::Result<OwnedFd> {
    connect_to(&UnixAddr::new(path)?, limit)
}

fn connect_to(address: &UnixAddr, limit: Option<Duration>) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    let began = Instant::now();
    loop {
        if let Some(limit) = limit {
            // The kernel takes zero for no limit.
            let left = limit.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            set_send_timeout(fd.as_fd(), Some(left))?;
        }
        match nix::sys::socket::connect(fd.as_raw_fd(), address) {
            Ok(()) => break,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    if limit.is_some() {
        set_send_timeout(fd.as_fd(), None)?;
    }
    Ok(fd)
}

/// The credentials of the process at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process id in this PID namespace, 0 if the process is not visible here.
    pub pid: i32,
    /// The user id.
    pub uid: u32,
}

/// Returns the credentials of the other end, as the kernel recorded them at connect or listen.
///
/// # Errors
/// As `getsockopt(2)`.
pub fn peer(fd: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let credentials = getsockopt(&fd, sockopt::PeerCredentials)?;
    Ok(PeerCredentials { pid: credentials.pid(), uid: credentials.uid() })
}

/// Returns a descriptor that becomes readable once the process at the other end has ended: the
/// process that called connect or listen. The kernel has it for processes of any PID namespace from
/// Linux 6.5 on; before, the process is looked up by its number.
///
/// # Errors
/// As `getsockopt(2)` and `pidfd_open(2)`: `ESRCH` if the process has ended or is not visible here.
pub fn peer_process(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match peer_pidfd(fd) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => peer_pidfd_by_number(fd),
        result => result,
    }
}

/// Opens the peer's process by its number, on kernels before Linux 6.5.
fn peer_pidfd_by_number(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let process = crate::process::pidfd(peer(fd)?.pid)?;
    let mut connection = [PollFd::new(fd, PollFlags::empty())];
    poll(&mut connection, PollTimeout::ZERO)?;
    // Once the peer has ended, another process may have its number.
    if connection[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP)) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(process)
}

#[allow(unsafe_code, reason = "takes over descriptors and reads structures of the kernel")]
fn peer_pidfd(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let (mut process, mut length) = (-1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes one descriptor, which is new.
    unsafe {
        let to = (&raw mut process).cast();
        if libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, to, &raw mut length) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(process))
    }
}

/// Sends a packet and descriptors.
///
/// # Errors
/// As `sendmsg(2)`: `EAGAIN` if the buffer of a peer that does not read is full; `ETOOMANYREFS` if
/// too many descriptors of this user are on their way, which ends when their receivers read.
pub fn send(fd: BorrowedFd<'_>, packet: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let iov = [io::IoSlice::new(packet)];
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[] } else { &rights[..] };
    loop {
        match sendmsg::<()>(fd.as_raw_fd(), &iov, control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(nix::Error::EINTR) => {}
            other => return other.map(drop).map_err(Into::into),
        }
    }
}

/// The result of [`receive`].
// Exhaustive: a read has no other outcome.
pub enum ReceivedPacket {
    /// A packet with its descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// No packet is available yet.
    Nothing,
    /// The peer has closed the connection.
    End,
}

/// Receives one packet of at most `longest` bytes. The rest of a longer packet is lost.
///
/// # Errors
/// As `recvmsg(2)`; `EMFILE` if this process has no room for all descriptors of the packet, which
/// are closed then.
#[allow(unsafe_code, reason = "takes over descriptors and reads structures of the kernel")]
pub fn receive(fd: BorrowedFd<'_>, longest: usize) -> io::Result<ReceivedPacket> {
    let length = match next_length(fd) {
        // A peer that closes the connection before it has read everything resets it. The kernel
        // reports that first, and then what the peer has sent.
        Err(Errno::ECONNRESET) => next_length(fd),
        other => other,
    };
    let length = match length {
        Ok(length) => length.min(longest),
        Err(Errno::EAGAIN) => return Ok(ReceivedPacket::Nothing),
        Err(Errno::ECONNRESET) => return Ok(ReceivedPacket::End),
        Err(errno) => return Err(errno.into()),
    };
    let mut packet = vec![0u8; length];
    let mut raw_descriptors = [-1; raw::MAX_DESCRIPTORS];
    let received = match raw::receive(fd.as_raw_fd(), &mut packet, &mut raw_descriptors) {
        Ok(received) => received,
        Err(raw::Errno::AGAIN) => return Ok(ReceivedPacket::Nothing),
        Err(raw::Errno(libc::ECONNRESET)) => return Ok(ReceivedPacket::End),
        Err(errno) => return Err(io::Error::from_raw_os_error(errno.0)),
    };
    let descriptors = raw_descriptors[..received.descriptors]
        .iter()
        // SAFETY: the kernel has created these descriptors for this process.
        .map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) })
        .collect();
    if received.truncated {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    packet.truncate(received.packet);
    Ok(match received.packet {
        0 => ReceivedPacket::End,
        _ => ReceivedPacket::Packet(packet, descriptors),
    })
}

/// Returns the length of the next packet, which stays in the socket: most packets are much shorter
/// than the longest. 0 at the end of the connection.
fn next_length(fd: BorrowedFd<'_>) -> nix::Result<usize> {
    loop {
        match recv(fd.as_raw_fd(), &mut [], MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Limits the time that a blocking receive on `fd` waits. `None` means no limit.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn set_receive_timeout(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    Ok(nix::sys::socket::setsockopt(&fd, sockopt::ReceiveTimeout, &time_value(timeout))?)
}

/// Limits the time that a blocking send on `fd` waits, which then fails with `WouldBlock`. `None`
/// means no limit.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn set_send_timeout(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    Ok(nix::sys::socket::setsockopt(&fd, sockopt::SendTimeout, &time_value(timeout))?)
}

/// Ends both directions of a connection, for all processes that have it.
///
/// # Errors
/// As `shutdown(2)`.
pub fn shut_down(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::sys::socket::shutdown(fd.as_raw_fd(), nix::sys::socket::Shutdown::Both)?)
}

fn time_value(timeout: Option<Duration>) -> nix::sys::time::TimeVal {
    let timeout = timeout.unwrap_or_default();
    nix::sys::time::TimeVal::new(timeout.as_secs() as i64, i64::from(timeout.subsec_micros()))
}

/// Returns whether `name` is a valid abstract name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    std::os::unix::net::SocketAddr::from_abstract_name(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    #[test]
    fn packets_are_received_whole_up_to_the_limit() {
        let flags = SockFlag::SOCK_NONBLOCK;
        let pair = nix::sys::socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (a, b) = pair.expect("two sockets");
        let received = |longest| receive(b.as_fd(), longest).expect("a packet socket");
        assert!(matches!(received(64), ReceivedPacket::Nothing));
        send(a.as_fd(), b"first", &[a.as_raw_fd(); 3]).expect("there is room in the socket");
        send(a.as_fd(), b"second", &[]).expect("there is room in the socket");
        assert!(matches!(received(64), ReceivedPacket::Packet(p, d) if p == b"first" && d.len() == 3));
        assert!(matches!(received(3), ReceivedPacket::Packet(p, d) if p == b"sec" && d.is_empty()));
        assert!(matches!(received(64), ReceivedPacket::Nothing));
        drop(a);
        assert!(matches!(received(64), ReceivedPacket::End));
    }

    #[test]
    fn packets_of_a_peer_that_has_not_read_everything_are_received() {
        let flags = SockFlag::SOCK_NONBLOCK;
        let pair = nix::sys::socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (a, b) = pair.expect("two sockets");
        send(a.as_fd(), b"unread", &[]).expect("there is room in the socket");
        send(b.as_fd(), b"last", &[a.as_raw_fd()]).expect("there is room in the socket");
        drop(b);
        let received = || receive(a.as_fd(), 64).expect("a packet socket");
        assert!(matches!(received(), ReceivedPacket::Packet(p, d) if p == b"last" && d.len() == 1));
        assert!(matches!(received(), ReceivedPacket::End));
    }

    #[test]
    fn descriptors_without_room_are_an_error_and_none_remains() {
        let own = || std::fs::read_dir("/proc/self/fd").expect("/proc is there").count();
        let flags = SockFlag::empty();
        let pair = nix::sys::socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (a, b) = pair.expect("two sockets");
        send(a.as_fd(), b"x", &[a.as_raw_fd(); 40]).expect("there is room in the socket");
        let before = own();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, before as u64 + 8, hard).expect("it is lower");
        let error = receive(b.as_fd(), 64).err().and_then(|e| e.raw_os_error());
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("it was so before");
        assert_eq!((error, own()), (Some(libc::EMFILE), before));
    }

    #[test]
    fn the_process_at_the_other_end_is_known_by_a_descriptor() {
        let flags = SockFlag::SOCK_NONBLOCK;
        let pair = nix::sys::socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (a, _b) = pair.expect("two sockets");
        let process = peer_process(a.as_fd()).expect("this process runs");
        crate::process::signal(process.as_fd(), 0).expect("it is this process");
    }

    #[test]
    fn connecting_to_a_process_that_accepts_nothing_ends_at_the_limit() {
        let name = format!("hostbuf-socket-test-{}", std::process::id());
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
        let listener = listener.expect("a socket");
        let address = UnixAddr::new_abstract(name.as_bytes()).expect("a short name");
        bind(listener.as_raw_fd(), &address).expect("nobody has the name");
        listen(&listener, Backlog::new(0).expect("it is valid")).expect("it is bound");
        let limit = Duration::from_millis(50);
        // The kernel keeps one connection more than the backlog.
        let _first = connect(&name, Some(limit)).expect("there is room for it");
        let began = Instant::now();
        let error = connect(&name, Some(limit)).expect_err("there is no room");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
        let error = connect(&name, Some(Duration::ZERO)).expect_err("there is no room");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
