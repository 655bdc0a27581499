//! A connection between a process and a server of its host, such as the agent: frames over a packet
//! socket, whose ends belong to one user.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::socket::{self, PeerCredentials, ReceivedPacket};
use hostbuf_protocol::frame::{FRAME_MAX, FrameError};
use hostbuf_protocol::message::Message;

/// One end of a connection.
#[derive(Debug)]
pub struct FrameSocket {
    fd: OwnedFd,
    peer: PeerCredentials,
}

/// The result of [`FrameSocket::receive`].
#[non_exhaustive]
pub enum Received {
    /// A packet with its descriptors.
    Packet(Packet),
    /// No packet is available yet (on a non-blocking connection, or within the time limit).
    Nothing,
    /// The peer has closed the connection.
    End,
}

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    /// The descriptors that came with the packet.
    pub descriptors: Vec<OwnedFd>,
}

impl Packet {
    /// Converts the packet into its bytes and its descriptors, for the messages of a protocol on
    /// top of this one.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.bytes, self.descriptors)
    }

    /// Parses the message in the packet.
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub fn message(&self) -> Result<Message<'_>, FrameError> {
        Message::parse(&self.bytes)
    }
}

impl FrameSocket {
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

    /// Sends a message and descriptors.
    ///
    /// # Errors
    /// As [`socket::send`].
    pub fn send(&self, message: &Message<'_>, descriptors: &[RawFd]) -> io::Result<()> {
        self.send_packet(&encode(message), descriptors)
    }

    /// Sends an encoded message and descriptors.
    ///
    /// # Errors
    /// As [`socket::send`].
    pub fn send_packet(&self, packet: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        socket::send(self.fd.as_fd(), packet, descriptors)
    }

    /// Receives the next packet.
    ///
    /// # Errors
    /// As [`socket::receive`].
    pub fn receive(&self) -> io::Result<Received> {
        Ok(match socket::receive(self.fd.as_fd(), FRAME_MAX)? {
            ReceivedPacket::Nothing => Received::Nothing,
            ReceivedPacket::End => Received::End,
            ReceivedPacket::Packet(bytes, descriptors) => Received::Packet(Packet { bytes, descriptors }),
        })
    }

    /// Converts the connection into its descriptor.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

/// Encodes a message.
#[must_use]
pub fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut packet = vec![0; message.length()];
    let length = message.encode(&mut packet).len();
    debug_assert_eq!(length, packet.len());
    packet
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
