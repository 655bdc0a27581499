//! The reasons why a session with a server cannot begin.

use std::time::Duration;
use std::{fmt, io};

use hostbuf_protocol::frame;
use hostbuf_protocol::message::Message;

use crate::frame_socket::Packet;

/// The reason why a client gets no session, or no first answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum SessionError {
    /// No process listens on the name.
    NoServer,
    /// Connecting has failed for another reason.
    Connect(io::Error),
    /// The socket belongs to another user.
    OtherUser {
        /// The user of the server.
        theirs: u32,
        /// The user of this process.
        own: u32,
    },
    /// The server has refused this process: the packet contains its [`Message::Refused`], or its
    /// [`Message::Fail`] if all that it serves has failed.
    Refused(Packet),
    /// The server speaks this other version of the protocol.
    OtherVersion(u16),
    /// The server has sent a packet that is no message.
    Malformed,
    /// The server has ended, or has closed the connection without an answer.
    Gone,
    /// The server has not accepted the connection, or has not answered, within this time.
    Timeout(Duration),
    /// Sending the hello, or receiving the answer, has failed.
    Io(io::Error),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::NoServer => f.write_str("no process listens on its socket"),
            SessionError::Connect(error) => write!(f, "connecting to its socket failed: {error}"),
            SessionError::OtherUser { theirs, own } => {
                write!(f, "the socket belongs to user {theirs}, and this process to user {own}")
            }
            SessionError::Refused(packet) => match packet.message() {
                Ok(Message::Fail { error, .. } | Message::Refused { error }) => f.write_str(error.line),
                _ => f.write_str("it has refused this process"),
            },
            SessionError::OtherVersion(theirs) => write!(
                f,
                "it has another version of hostbuf (protocol {theirs}, this program has {}): use one installation",
                frame::VERSION
            ),
            SessionError::Malformed => f.write_str("it sent an invalid message"),
            SessionError::Gone => f.write_str("it has ended, or has closed the connection"),
            SessionError::Timeout(limit) => write!(f, "it did not answer within {} s", limit.as_secs_f32()),
            SessionError::Io(error) => write!(f, "exchanging messages with it failed: {error}"),
        }
    }
}

impl std::error::Error for SessionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SessionError::Connect(error) | SessionError::Io(error) => Some(error),
            _ => None,
        }
    }
}
