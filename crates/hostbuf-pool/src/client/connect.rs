//! The beginning of a client's connection.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hostbuf_os::session::{Session, SessionError};
use hostbuf_os::{FrameSocket, PrivateFd, Received, process, socket};
use hostbuf_protocol::failure::cut;
use hostbuf_protocol::message::{Hello, Message, Role};

use super::peer_broker::peer_broker;
use super::pool_options::PoolOptions;
use crate::error::PoolError;
use crate::pool_id::PoolId;
use crate::wire::PoolMessage;

/// The largest length of a client's name in bytes.
const NAME_MAX: usize = 255;

/// A connection whose broker has answered the hello.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) socket: FrameSocket,
    /// The pool of the broker.
    pub(super) pool: PoolId,
    /// The file by which a later broker knows this process as a client.
    pub(super) client_file: PrivateFd,
}

/// The reason why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// No process listens on the socket, or it is about to end.
    NoBroker,
    /// Anything else.
    Other(PoolError),
}

/// Connects to the broker and says hello. `identity` is the random number of this client.
pub(super) fn connect(options: &PoolOptions, identity: u64) -> Result<OpenConnection, ConnectFailure> {
    let mut hello = Hello::of(Role::PoolClient);
    hello.request = identity;
    let name = cut(&options.name, NAME_MAX);
    let hello = Message::Hello { hello, command: name.as_bytes() };
    let deadline = Instant::now() + options.timeout;
    let session = match &options.path {
        Some(path) => Session::open_at(path, Some(options.timeout), &hello),
        None => Session::open(&options.socket, Some(options.timeout), &hello),
    };
    let session = session.map_err(|error| match error {
        SessionError::NoServer | SessionError::Gone => ConnectFailure::NoBroker,
        SessionError::Timeout(_) => no_answer(options, None),
        other => ConnectFailure::Other(PoolError::NoBroker {
            why: format!(
                "cannot connect to the pool's broker at {} on {}: {other}",
                describe_socket(options),
                process::host_name()
            ),
        }),
    })?;
    let socket = session.into_connection();
    // A stopped broker reads nothing.
    socket::set_send_timeout(socket.as_fd(), Some(options.timeout))
        .map_err(|error| ConnectFailure::Other(PoolError::os("connecting to the pool's broker")(error)))?;
    let (pool, client_file) = receive_welcome(&socket, options, deadline)?;
    Ok(OpenConnection { socket, pool, client_file })
}

/// Describes the socket: `@hostbuf-pool-1000` or a path.
pub(super) fn describe_socket(options: &PoolOptions) -> String {
    match &options.path {
        Some(path) => path.display().to_string(),
        None => format!("@{}", options.socket),
    }
}

/// Returns the failure for a broker that has not accepted the connection, or not answered the
/// hello.
fn no_answer(options: &PoolOptions, broker: Option<i32>) -> ConnectFailure {
    let doing = format!("connecting to the pool at {}", describe_socket(options));
    ConnectFailure::Other(PoolError::Timeout { doing, broker, limit: options.timeout })
}

fn receive_welcome(
    socket: &FrameSocket,
    options: &PoolOptions,
    deadline: Instant,
) -> Result<(PoolId, PrivateFd), ConnectFailure> {
    // The kernel takes zero for no limit.
    let limit = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let os = |error| ConnectFailure::Other(PoolError::os("receiving from the pool's broker")(error));
    socket::set_receive_timeout(socket.as_fd(), Some(limit)).map_err(os)?;
    let packet = match socket.receive().map_err(os)? {
        Received::Packet(packet) => packet,
        Received::Nothing => return Err(no_answer(options, peer_broker(socket, options))),
        _ => return Err(ConnectFailure::NoBroker),
    };
    socket::set_receive_timeout(socket.as_fd(), None).map_err(os)?;
    if let Ok(Message::Refused { error }) = packet.message() {
        let why = format!("the server at the pool's socket refuses this process: {}", error.line);
        return Err(ConnectFailure::Other(PoolError::NoBroker { why }));
    }
    let (bytes, descriptors) = packet.into_parts();
    match (PoolMessage::parse(&bytes), descriptors.into_iter().next()) {
        (Ok(PoolMessage::Welcome { pool, .. }), Some(client_file)) => Ok((pool, client_file.into())),
        _ => {
            let why = "the process at the pool's socket is no broker of this version of hostbuf: use one installation";
            Err(ConnectFailure::Other(PoolError::NoBroker { why: why.into() }))
        }
    }
}
