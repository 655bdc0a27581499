//! The client's side of a session.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use hostbuf_protocol::frame::FrameError;
use hostbuf_protocol::message::Message;

use super::SessionError;
use crate::frame_socket::{FrameSocket, Packet, Received};
use crate::socket;

/// A connection to a server of this user that has got this process's hello.
#[derive(Debug)]
pub struct Session {
    connection: FrameSocket,
}

impl Session {
    /// Connects to the server at the abstract name `name`, checks its user, and says `hello`. The
    /// server must accept the connection within `limit`, if there is one.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn open(name: &str, limit: Option<Duration>, hello: &Message<'_>) -> Result<Session, SessionError> {
        Session::begin(socket::connect(name, limit), limit, hello)
    }

    /// Connects to the server whose socket is at `path`, checks its user, and says `hello`. The
    /// server must accept the connection within `limit`, if there is one.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn open_at(
        path: &Path,
        limit: Option<Duration>,
        hello: &Message<'_>,
    ) -> Result<Session, SessionError> {
        Session::begin(socket::connect_at(path, limit), limit, hello)
    }

    fn begin(
        connected: io::Result<OwnedFd>,
        limit: Option<Duration>,
        hello: &Message<'_>,
    ) -> Result<Session, SessionError> {
        let fd = connected.map_err(|error| match (error.raw_os_error(), limit) {
            (Some(libc::ECONNREFUSED | libc::ENOENT), _) => SessionError::NoServer,
            (None, Some(limit)) if error.kind() == io::ErrorKind::TimedOut => SessionError::Timeout(limit),
            _ => SessionError::Connect(error),
        })?;
        let (peer, own) =
            (socket::peer(fd.as_fd()).map_err(SessionError::Io)?, nix::unistd::geteuid().as_raw());
        if peer.uid != own {
            return Err(SessionError::OtherUser { theirs: peer.uid, own });
        }
        let session = Session { connection: FrameSocket::from_fd(fd).map_err(SessionError::Io)? };
        match session.connection.send(hello, &[]) {
            Ok(()) => Ok(session),
            // A server that has closed the connection already may have stated the reason.
            Err(error) if is_closed(&error) => Err(session.receive().err().unwrap_or(SessionError::Gone)),
            Err(error) => Err(SessionError::Io(error)),
        }
    }

    /// Receives the first answer of the server, for which this process waits at most `limit`.
    ///
    /// # Errors
    /// [`SessionError`]; [`SessionError::Refused`] with the packet for a refusal.
    pub fn first_answer(&self, limit: Duration) -> Result<Packet, SessionError> {
        let set =
            |limit| socket::set_receive_timeout(self.connection.as_fd(), limit).map_err(SessionError::Io);
        set(Some(limit))?;
        let answer = self.receive();
        set(None)?;
        match answer {
            Err(SessionError::Timeout(_)) => Err(SessionError::Timeout(limit)),
            other => other,
        }
    }

    fn receive(&self) -> Result<Packet, SessionError> {
        let packet = match self.connection.receive() {
            Ok(Received::Packet(packet)) => packet,
            Ok(Received::Nothing) => return Err(SessionError::Timeout(Duration::ZERO)),
            Ok(Received::End) => return Err(SessionError::Gone),
            Err(error) => return Err(SessionError::Io(error)),
        };
        match packet.message() {
            Ok(Message::Fail { .. } | Message::Refused { .. }) => Err(SessionError::Refused(packet)),
            Ok(_) => Ok(packet),
            Err(FrameError::OtherVersion(theirs)) => Err(SessionError::OtherVersion(theirs)),
            Err(FrameError::Malformed) => Err(SessionError::Malformed),
        }
    }

    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &FrameSocket {
        &self.connection
    }

    /// Converts the session into its connection.
    #[must_use]
    pub fn into_connection(self) -> FrameSocket {
        self.connection
    }
}

/// Returns whether the error of a send means that the other side has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
