//! Making a connection to a receiver.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, getsockopt, socket, sockopt,
};

use crate::keepalive::keep_alive;
use crate::readiness::{WakeEvent, wait};
use crate::wire::{FrameAnswer, HelloStatus, InvalidRecord, ReceiverHello, SenderHello};

/// The idle time after which the kernel asks the receiver whether it is there, in seconds. A
/// frame's deadline is usually longer.
const KEEPALIVE_SECONDS: u32 = 1;

/// The reason why no connection was made.
#[derive(Debug)]
pub(super) enum OpenFailure {
    /// The receiver does not respond, or the connection was lost.
    Os(io::Error),
    /// The receiver did not respond in time.
    TimedOut,
    /// The program at the address is no mirror, or one of another version.
    Invalid(InvalidRecord),
    /// The receiver has as many connections as it may have.
    Busy,
    /// The sender was closed meanwhile.
    Closed,
}

impl OpenFailure {
    /// Returns whether no program listens at the address.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, OpenFailure::Os(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl std::fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenFailure::Os(error) => error.fmt(f),
            OpenFailure::TimedOut => f.write_str("it does not respond"),
            OpenFailure::Invalid(error) => error.fmt(f),
            OpenFailure::Busy => f.write_str(
                "it has as many connections as it may have: end other senders, or allow more connections there",
            ),
            OpenFailure::Closed => f.write_str("the sender was closed"),
        }
    }
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> OpenFailure {
        OpenFailure::Os(error)
    }
}

impl From<InvalidRecord> for OpenFailure {
    fn from(error: InvalidRecord) -> OpenFailure {
        OpenFailure::Invalid(error)
    }
}

/// A connection that the receiver has accepted.
#[derive(Debug)]
pub(super) struct Opened {
    /// The socket, which does not block.
    pub(super) stream: TcpStream,
    pub(super) hello: ReceiverHello,
    /// The answers that the sender has missed.
    pub(super) answers: Vec<FrameAnswer>,
}

/// The limits of waiting for a socket: a time, and the end of the sender.
struct Waiting<'w> {
    wake: &'w WakeEvent,
    is_closed: &'w dyn Fn() -> bool,
    /// A function that gives up the frames whose time is over, and returns the next such time.
    expire: &'w dyn Fn() -> Option<Instant>,
    until: Instant,
}

impl Waiting<'_> {
    fn for_events(&self, socket: &impl AsFd, events: PollFlags) -> Result<(), OpenFailure> {
        loop {
            self.wake.clear();
            if (self.is_closed)() {
                return Err(OpenFailure::Closed);
            }
            // An attempt outlives the frames: they may have less time than it needs.
            let until = (self.expire)().map_or(self.until, |first| first.min(self.until));
            if !wait(Some((socket.as_fd(), events)), self.wake, Some(until))?.is_empty() {
                return Ok(());
            }
            if Instant::now() >= self.until {
                return Err(OpenFailure::TimedOut);
            }
        }
    }

    /// Performs `operation` on the socket until it has done `length` bytes.
    fn transfer(
        &self,
        stream: &TcpStream,
        events: PollFlags,
        length: usize,
        mut operation: impl FnMut(&TcpStream, usize) -> io::Result<usize>,
    ) -> Result<(), OpenFailure> {
        let mut done = 0;
        while done < length {
            match operation(stream, done) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.for_events(stream, events)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read<const N: usize>(&self, stream: &TcpStream) -> Result<[u8; N], OpenFailure> {
        let mut record = [0; N];
        self.transfer(stream, PollFlags::POLLIN, N, |mut stream, done| {
            io::Read::read(&mut stream, &mut record[done..])
        })?;
        Ok(record)
    }

    fn write(&self, stream: &TcpStream, record: &[u8]) -> Result<(), OpenFailure> {
        self.transfer(stream, PollFlags::POLLOUT, record.len(), |mut stream, done| {
            io::Write::write(&mut stream, &record[done..])
        })
    }
}

/// Connects to a receiver and exchanges the first records, at most until `until`. Meanwhile it
/// calls `expire` for the frames that wait.
///
/// # Errors
/// [`OpenFailure`].
pub(super) fn open(
    address: SocketAddr,
    own: SenderHello,
    wake: &WakeEvent,
    is_closed: &dyn Fn() -> bool,
    expire: &dyn Fn() -> Option<Instant>,
    until: Instant,
) -> Result<Opened, OpenFailure> {
    let waiting = Waiting { wake, is_closed, expire, until };
    let stream = connect_to(address, &waiting)?;
    waiting.write(&stream, &own.encode())?;
    let hello = ReceiverHello::decode(&waiting.read(&stream)?)?;
    match hello.status {
        HelloStatus::Accepted => {}
        HelloStatus::Busy => return Err(OpenFailure::Busy),
        HelloStatus::OtherVersion => return Err(InvalidRecord::Damaged("it refuses its own version").into()),
    }
    let answers = (0..hello.answers).map(|_| Ok(FrameAnswer::decode(&waiting.read(&stream)?)?));
    let answers = answers.collect::<Result<_, OpenFailure>>()?;
    Ok(Opened { stream, hello, answers })
}

fn connect_to(address: SocketAddr, waiting: &Waiting<'_>) -> Result<TcpStream, OpenFailure> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd =
        socket(family, SockType::Stream, flags, SockProtocol::Tcp).map_err(io::Error::from)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) => {}
        Err(nix::Error::EINPROGRESS) => {
            waiting.for_events(&socket, PollFlags::POLLOUT)?;
            let error = getsockopt(&socket, sockopt::SocketError).map_err(io::Error::from)?;
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error).into());
            }
        }
        Err(errno) => return Err(io::Error::from(errno).into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    // While the sender waits for an answer it may have no byte on its way, and would never learn
    // that the receiver has ended if the packet that says so was lost.
    keep_alive(&stream, KEEPALIVE_SECONDS)?;
    Ok(stream)
}
