//! Connections of clients that are not of the library.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hostbuf_os::encode;
use hostbuf_os::socket::{self, ReceivedPacket};
use hostbuf_protocol::frame::FRAME_MAX;
use hostbuf_protocol::message::{Hello, Message, Role};

use crate::broken_promise::BrokenPromise;

/// The time within which the broker answers. It waits for free descriptors for 10 s.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The answer of the broker to a hello.
#[derive(Debug)]
pub(crate) enum HelloAnswer {
    /// The connection is that of a client.
    Welcome(OwnedFd),
    /// The broker has refused the connection for this reason.
    Refused(String),
}

/// Connects as a client, and waits for the answer.
pub(crate) fn say_hello(name: &str, identity: u64) -> Result<HelloAnswer, BrokenPromise> {
    let connection = socket::connect(name, None).map_err(|error| format!("connecting: {error}"))?;
    socket::set_receive_timeout(connection.as_fd(), Some(ANSWER_LIMIT)).map_err(|error| error.to_string())?;
    let hello = Hello { request: identity, ..Hello::of(Role::PoolClient) };
    let hello = encode(&Message::Hello { hello, command: b"stranger" });
    socket::send(connection.as_fd(), &hello, &[]).map_err(|error| format!("saying hello: {error}"))?;
    match socket::receive(connection.as_fd(), FRAME_MAX) {
        Ok(ReceivedPacket::Packet(packet, _)) => Ok(match Message::parse(&packet) {
            Ok(Message::Refused { error }) => HelloAnswer::Refused(error.line.to_string()),
            _ => HelloAnswer::Welcome(connection),
        }),
        Ok(ReceivedPacket::Nothing) => Err(format!("no answer within {ANSWER_LIMIT:?}")),
        Ok(ReceivedPacket::End) => Err("the connection has ended without an answer".into()),
        Err(error) => Err(error.to_string()),
    }
}
