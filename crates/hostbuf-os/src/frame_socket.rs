//! A connection between a process and the agent of its host: frames over a packet socket, whose
//! ends belong to one user.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::socket::{self, PeerCredentials, ReceivedPacket};
use hostbuf_protocol::wire::Frame;

/// One end of a connection.
#[derive(Debug)]
pub struct FrameSocket {
    fd: OwnedFd,
    peer: PeerCredentials,
}

/// The result of [`FrameSocket::receive`].
pub enum Message {
    /// A frame with its descriptors.
    Frame(Box<Frame>, Vec<OwnedFd>),
    /// No packet is available yet (on a non-blocking connection).
    Nothing,
    /// The peer has closed the connection.
    End,
    /// The peer sent a packet that is not a frame.
    Nonsense,
}

impl FrameSocket {
    /// Connects to the agent at the abstract name `name`. The connection is blocking.
    ///
    /// # Errors
    /// As `connect(2)`; `PermissionDenied` if the socket belongs to another user.
    pub fn connect(name: &str) -> io::Result<FrameSocket> {
        FrameSocket::from_fd(socket::connect(name)?)
    }

    /// Takes over a connection.
    ///
    /// # Errors
    /// `PermissionDenied` if the process at the other end belongs to another user.
    pub fn from_fd(fd: OwnedFd) -> io::Result<FrameSocket> {
        let peer = socket::peer(fd.as_fd())?;
        let own = nix::unistd::geteuid().as_raw();
        if peer.uid != own {
            let why = format!("the socket belongs to user {}, and this process to user {own}", peer.uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(FrameSocket { fd, peer })
    }

    /// Returns the credentials of the process at the other end.
    #[must_use]
    pub fn peer(&self) -> PeerCredentials {
        self.peer
    }

    /// Sends a frame and descriptors.
    ///
    /// # Errors
    /// As `sendmsg(2)`.
    pub fn send(&self, frame: &Frame, descriptors: &[RawFd]) -> io::Result<()> {
        socket::send(self.fd.as_fd(), frame.bytes(), descriptors)
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// As `recvmsg(2)`.
    pub fn receive(&self) -> io::Result<Message> {
        Ok(match socket::receive(self.fd.as_fd())? {
            ReceivedPacket::Nothing => Message::Nothing,
            ReceivedPacket::End => Message::End,
            ReceivedPacket::Packet(packet, descriptors) => match Frame::parse(&packet) {
                Some(frame) => Message::Frame(Box::new(frame), descriptors),
                None => Message::Nonsense,
            },
        })
    }

    /// Converts the connection into its descriptor.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for FrameSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
