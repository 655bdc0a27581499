//! Connecting to the root of a TCP bootstrap.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;

use crate::connect::bootstrap_error::{BootstrapError, is_end};
use crate::connect::record_stream::RecordStream;
use crate::peer::PeerId;

/// The first bytes of a connection, in each direction. The version of the protocol follows.
const MAGIC: [u8; 7] = *b"hbboot\0";
const VERSION: u8 = 2;
/// The number of bytes of [`MAGIC`] and the version.
const HEAD: usize = 8;
/// The number of bytes of the greeting of a process: head, index, and number of processes.
const GREETING: usize = HEAD + 8;
/// The time that a new connection has for its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two attempts to connect to a root that does not listen yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A process that has connected to the root.
pub(crate) struct GreetedPeer {
    pub(crate) stream: RecordStream,
    pub(crate) peer: PeerId,
    /// The number of processes of its bootstrap.
    pub(crate) count: usize,
}

/// The greeting of a process that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// A greeting of this version, with the index of the process and the number of processes.
    Process { peer: PeerId, count: usize },
    /// A greeting of another version, of which only the head is known.
    OtherVersion(u8),
}

/// The connections to the root's port.
pub(crate) struct Arrivals {
    listener: TcpListener,
    /// Connections without a whole greeting.
    ungreeted: Vec<Arrival>,
}

/// A connection that has not sent its whole greeting yet.
struct Arrival {
    /// The connection, on which reads do not wait.
    stream: TcpStream,
    address: SocketAddr,
    /// The time at which it is closed.
    until: Instant,
    bytes: [u8; GREETING],
    /// The number of bytes that have been received.
    received: usize,
}

impl Arrival {
    /// Prepares a connection.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    fn new((stream, address): (TcpStream, SocketAddr)) -> io::Result<Arrival> {
        stream.set_nonblocking(true)?;
        let until = Instant::now() + GREETING_TIMEOUT;
        Ok(Arrival { stream, address, until, bytes: [0; GREETING], received: 0 })
    }

    /// Reads more of the greeting, without waiting for it. Returns the greeting once no more bytes
    /// are needed.
    ///
    /// # Errors
    /// `InvalidData` for another program; `UnexpectedEof` if the peer has ended the connection;
    /// otherwise as `recv(2)`.
    fn receive(&mut self) -> io::Result<Option<Greeting>> {
        match self.stream.read(&mut self.bytes[self.received..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.received += count,
            Err(error) if is_temporary(error.kind()) => {}
            Err(error) => return Err(error),
        }
        Greeting::decode(&self.bytes[..self.received])
    }

    /// Answers the greeting, and returns the connection.
    ///
    /// # Errors
    /// As [`RecordStream::write`].
    fn answer(self, deadline: Instant) -> io::Result<RecordStream> {
        let mut stream = RecordStream::new(self.stream)?;
        stream.write(&head(), deadline)?;
        Ok(stream)
    }
}

impl Greeting {
    /// Encodes a greeting of this version.
    pub(crate) fn encode(peer: PeerId, count: usize) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..HEAD].copy_from_slice(&head());
        bytes[HEAD..HEAD + 4].copy_from_slice(&(peer.0 as u32).to_le_bytes());
        bytes[HEAD + 4..].copy_from_slice(&(count as u32).to_le_bytes());
        bytes
    }

    /// Decodes the bytes that have been received so far. Returns `None` if more are needed.
    ///
    /// # Errors
    /// `InvalidData` for another program.
    pub(crate) fn decode(received: &[u8]) -> io::Result<Option<Greeting>> {
        let Some((head, numbers)) = received.split_first_chunk() else { return Ok(None) };
        let version = version_of(head)?;
        if version != VERSION {
            return Ok(Some(Greeting::OtherVersion(version)));
        }
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) as usize;
        Ok(match numbers.as_chunks::<4>().0 {
            [peer, count, ..] => Some(Greeting::Process { peer: PeerId(number(peer)), count: number(count) }),
            _ => None,
        })
    }
}

impl Arrivals {
    /// Prepares the listener.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub(crate) fn new(listener: TcpListener) -> io::Result<Arrivals> {
        listener.set_nonblocking(true)?;
        Ok(Arrivals { listener, ungreeted: Vec::new() })
    }

    /// Waits for the next process, and answers its greeting. Connections of other programs are
    /// ignored, and those that send no whole greeting delay no other. Returns `None` at the
    /// deadline.
    ///
    /// # Errors
    /// [`BootstrapError::Listener`], or [`BootstrapError::OtherVersion`] of a process.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Option<GreetedPeer>, BootstrapError> {
        loop {
            let now = Instant::now();
            self.ungreeted.retain(|arrival| arrival.until > now);
            if now >= deadline {
                return Ok(None);
            }
            let wake = self.ungreeted.iter().map(|arrival| arrival.until).fold(deadline, Instant::min);
            let (arrived, speaking) = self.wait(wake - now);
            if let Some(at) = speaking {
                match self.greeted(at, deadline) {
                    Ok(None) => {}
                    Ok(Some((stream, _, Greeting::Process { peer, count }))) => {
                        return Ok(Some(GreetedPeer { stream, peer, count }));
                    }
                    Ok(Some((_, address, Greeting::OtherVersion(version)))) => {
                        return Err(other_version(address, version));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "ignored a connection that is not from a process of this bootstrap");
                    }
                }
            } else if arrived {
                match self.listener.accept().and_then(Arrival::new) {
                    Ok(arrival) => self.ungreeted.push(arrival),
                    Err(error) if is_temporary(error.kind()) => {}
                    Err(error) => return Err(BootstrapError::Listener { source: Arc::new(error) }),
                }
            }
        }
    }

    /// Reads from the connection at `at`, and answers its greeting if that is whole. Returns the
    /// connection, the address of the process, and its greeting. The connection is removed with its
    /// greeting, or with an error.
    fn greeted(
        &mut self,
        at: usize,
        deadline: Instant,
    ) -> io::Result<Option<(RecordStream, SocketAddr, Greeting)>> {
        let received = self.ungreeted[at].receive();
        if let Ok(None) = received {
            return Ok(None);
        }
        let arrival = self.ungreeted.swap_remove(at);
        let Some(greeting) = received? else { return Ok(None) };
        let (address, deadline) = (arrival.address, arrival.until.min(deadline));
        Ok(Some((arrival.answer(deadline)?, address, greeting)))
    }

    /// Waits for at most `timeout`. Returns whether a connection has arrived, and the index of one
    /// without a whole greeting that has sent something or has ended.
    fn wait(&self, timeout: Duration) -> (bool, Option<usize>) {
        // Rounded up, so that it is not zero before the time.
        let timeout = i32::try_from(timeout.as_millis() + 1).unwrap_or(i32::MAX);
        let ungreeted = self.ungreeted.iter().map(|arrival| arrival.stream.as_fd());
        let descriptors = std::iter::once(self.listener.as_fd()).chain(ungreeted);
        let mut polled: Vec<PollFd<'_>> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // An error, such as an interruption, is repeated by the caller.
        let _ = poll(&mut polled, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX));
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        (is_ready(&polled[0]), polled[1..].iter().position(is_ready))
    }
}

/// Connects process `peer` of `count` to the root, which listens at `root` or will do so soon.
///
/// # Errors
/// [`BootstrapError::Unreachable`], [`BootstrapError::Lost`], [`BootstrapError::NotBootstrap`] for
/// another program, or [`BootstrapError::OtherVersion`].
pub(crate) fn connect(
    peer: PeerId,
    count: usize,
    root: SocketAddr,
    deadline: Instant,
) -> Result<RecordStream, BootstrapError> {
    let unreachable = |error| BootstrapError::Unreachable { root, source: Arc::new(error) };
    let stream = connect_stream(root, deadline).map_err(unreachable)?;
    match greet(stream, peer, count, deadline) {
        Ok((stream, VERSION)) => Ok(stream),
        Ok((_, version)) => Err(other_version(root, version)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let silent = "it accepted the connection and sent no greeting";
            Err(unreachable(io::Error::new(io::ErrorKind::TimedOut, silent)))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(BootstrapError::NotBootstrap { root, source: Arc::new(error) })
        }
        Err(error) if is_end(&error) => {
            Err(BootstrapError::Lost { peer: PeerId(0), count, address: Some(root) })
        }
        Err(error) => Err(unreachable(error)),
    }
}

fn greet(stream: TcpStream, peer: PeerId, count: usize, deadline: Instant) -> io::Result<(RecordStream, u8)> {
    let mut stream = RecordStream::new(stream)?;
    stream.write(&Greeting::encode(peer, count), deadline)?;
    let mut bytes = [0; HEAD];
    stream.read(&mut bytes, deadline)?;
    let version = version_of(&bytes)?;
    Ok((stream, version))
}

pub(crate) fn head() -> [u8; HEAD] {
    let mut bytes = [VERSION; HEAD];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes
}

/// Returns the version in the head of a greeting.
///
/// # Errors
/// `InvalidData` for another program.
fn version_of(bytes: &[u8; HEAD]) -> io::Result<u8> {
    if bytes[..MAGIC.len()] != MAGIC {
        let why = format!("it sent \"{}\" instead of a greeting", bytes.escape_ascii());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes[MAGIC.len()])
}

fn other_version(address: SocketAddr, version: u8) -> BootstrapError {
    BootstrapError::OtherVersion { address, version, own_version: VERSION }
}

fn is_temporary(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(kind, WouldBlock | ConnectionAborted | Interrupted)
}

fn connect_stream(root: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    retry(deadline, |left| TcpStream::connect_timeout(&root, left))
}

/// Repeats `attempt`, which gets the time that is left, until it returns a connection to another
/// socket than its own.
fn retry(
    deadline: Instant,
    mut attempt: impl FnMut(Duration) -> io::Result<TcpStream>,
) -> io::Result<TcpStream> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match attempt(left).and_then(check_peer) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() + RETRY_INTERVAL >= deadline => return Err(error),
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Closes a connection of a socket to itself. The kernel makes one if the root's port is on this
/// host, nobody listens there yet, and the kernel selects that port for the socket.
///
/// # Errors
/// `ConnectionRefused`, since nobody listens.
fn check_peer(stream: TcpStream) -> io::Result<TcpStream> {
    let is_itself = matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer);
    if !is_itself {
        return Ok(stream);
    }
    // An orderly end would keep the port in TIME_WAIT, and the root could not listen there.
    setsockopt(&stream, Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    Err(io::ErrorKind::ConnectionRefused.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

    /// Makes a connection of a socket to itself.
    #[allow(unsafe_code, reason = "the test binds and connects a socket by foreign functions")]
    fn self_connected() -> TcpStream {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let stream = TcpStream::from(socket.expect("a socket"));
        let address = |port: u16| libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port.to_be(),
            // No other test listens on this address.
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 7, 0, 1]) },
            sin_zero: [0; 8],
        };
        let (any, size) = (address(0), size_of::<libc::sockaddr_in>() as libc::socklen_t);
        // SAFETY: an address of that size, which the call copies.
        let bound = unsafe { libc::bind(stream.as_raw_fd(), (&raw const any).cast(), size) };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
        let own = address(stream.local_addr().expect("its address").port());
        // SAFETY: an address of that size, which the call copies.
        let connected = unsafe { libc::connect(stream.as_raw_fd(), (&raw const own).cast(), size) };
        assert_eq!(connected, 0, "{}", io::Error::last_os_error());
        stream
    }

    #[test]
    fn a_greeting_is_decoded_as_soon_as_it_is_whole() {
        let bytes = Greeting::encode(PeerId(3), 7);
        let whole = Greeting::Process { peer: PeerId(3), count: 7 };
        for length in 0..GREETING {
            assert_eq!(Greeting::decode(&bytes[..length]).expect("a part"), None, "{length} bytes");
        }
        assert_eq!(Greeting::decode(&bytes).expect("a greeting"), Some(whole));
        let mut other = bytes;
        other[HEAD - 1] = VERSION + 1;
        let version = Greeting::OtherVersion(VERSION + 1);
        assert_eq!(Greeting::decode(&other[..HEAD]).expect("a head"), Some(version));
        other[0] = b'H';
        let error = Greeting::decode(&other[..HEAD]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_connection_to_itself_is_not_the_root_and_frees_its_port() {
        let stream = self_connected();
        let address = stream.local_addr().expect("its address");
        assert_eq!(stream.peer_addr().expect("it is connected"), address);
        let mut listener = None;
        let mut first = Some(stream);
        let connected = retry(Instant::now() + Duration::from_secs(60), |left| match first.take() {
            Some(stream) => Ok(stream),
            None => {
                listener = Some(TcpListener::bind(address).expect("the port is free"));
                TcpStream::connect_timeout(&address, left)
            }
        });
        assert!(listener.is_some(), "the connection to itself was taken for the root");
        let connected = connected.expect("the root listens");
        assert_ne!(connected.local_addr().expect("its address"), address);
    }
}
