//! The reasons why a bootstrap fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use crate::peer::PeerId;
use hostbuf::error::Error;

/// The reason why processes could not connect by a bootstrap, or why an exchange over it failed.
///
/// It is the source of an [`Error::Bootstrap`]. After any of these errors the bootstrap has to be
/// made again, by all processes:
///
/// ```
/// use std::net::TcpListener;
/// use std::time::Duration;
/// use hostbuf_rdma::{BootstrapError, TcpBootstrap};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let error = TcpBootstrap::listen(listener, 3, Duration::from_millis(1)).unwrap_err();
/// match BootstrapError::downcast_ref(&error) {
///     Some(BootstrapError::Missing { connected, expected, .. }) => {
///         println!("{} processes are late", expected - connected);
///     }
///     _ => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Some processes have not connected to the root within the time limit.
    Missing {
        /// The number of processes that have connected.
        connected: usize,
        /// The number of processes that have to connect: all but the root.
        expected: usize,
        /// The time limit.
        timeout: Duration,
    },
    /// The root does not listen at its address, or has sent no greeting within the time limit.
    Unreachable {
        /// The address of the root.
        root: SocketAddr,
        /// The error of the last attempt.
        source: Arc<io::Error>,
    },
    /// Another program listens at the address of the root.
    NotBootstrap {
        /// The address of the root.
        root: SocketAddr,
        /// A description of the bytes that the program has sent.
        source: Arc<io::Error>,
    },
    /// A process has another version of the protocol.
    OtherVersion {
        /// The address of the process.
        address: SocketAddr,
        /// The version of that process.
        version: u8,
        /// The version of this process.
        own_version: u8,
    },
    /// A process has connected with an index or a number of processes that contradict those of the
    /// root.
    Contradiction {
        /// The index of the process.
        peer: PeerId,
        /// The number of processes that it was started with.
        count: usize,
        /// The number of processes that the root was started with.
        root_count: usize,
    },
    /// Two processes have connected with the same index.
    Duplicate {
        /// The index.
        peer: PeerId,
        /// The number of processes.
        count: usize,
    },
    /// A process has not sent its record, or has not received those of the others, within the time
    /// limit.
    TimedOut {
        /// The index of the process.
        peer: PeerId,
        /// The number of processes.
        count: usize,
        /// The time limit.
        timeout: Duration,
    },
    /// A process has ended the connection, in most cases because of an error that it reports
    /// itself.
    Lost {
        /// The index of the process.
        peer: PeerId,
        /// The number of processes.
        count: usize,
        /// The address of the root, if it has ended the connection before its greeting.
        address: Option<SocketAddr>,
    },
    /// The connection to a process failed.
    Connection {
        /// The index of the process.
        peer: PeerId,
        /// The number of processes.
        count: usize,
        /// The error of the connection.
        source: Arc<io::Error>,
    },
    /// The root can accept no connection.
    Listener {
        /// The kernel's error.
        source: Arc<io::Error>,
    },
    /// The record of this process is too long.
    RecordTooLong {
        /// The number of bytes of the record.
        length: usize,
        /// The maximum number of bytes.
        limit: usize,
    },
    /// An earlier exchange over the same bootstrap failed.
    Earlier {
        /// The error of that exchange.
        first: Box<BootstrapError>,
    },
    /// An implementation of [`Bootstrap`](crate::Bootstrap) has returned a wrong number of records,
    /// or the records in a wrong order.
    Misordered {
        /// The number of records returned.
        returned: usize,
        /// The index of this process.
        index: PeerId,
        /// The number of processes.
        count: usize,
    },
    /// A process has sent a record that this process cannot read: it has called another function,
    /// or has another version of hostbuf.
    InvalidRecord {
        /// The index of the process.
        peer: PeerId,
        /// The content that this process expects.
        expected: RecordContent,
    },
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordContent {
    /// The address of an endpoint and the key of its memory.
    Endpoint,
    /// The channels that a process requests.
    Channels,
    /// The error of a process.
    Error,
}

impl BootstrapError {
    /// Returns the reason of an [`Error::Bootstrap`], unless the bootstrap is another project's
    /// implementation with reasons of its own. Returns `None` for other errors.
    #[must_use]
    pub fn downcast_ref(error: &Error) -> Option<&BootstrapError> {
        match error {
            Error::Bootstrap { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    /// Makes the error of the connection to `peer`.
    pub(crate) fn of_connection(peer: PeerId, count: usize, error: io::Error) -> BootstrapError {
        match is_end(&error) {
            true => BootstrapError::Lost { peer, count, address: None },
            false => BootstrapError::Connection { peer, count, source: Arc::new(error) },
        }
    }

    /// Makes the error of a failed operation.
    pub(crate) fn of(self, operation: &'static str) -> Error {
        Error::Bootstrap { operation, source: Box::new(self) }
    }
}

/// Returns whether an error states that the peer has ended the connection.
pub(crate) fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

impl From<BootstrapError> for Error {
    /// Makes the error of a failed exchange.
    fn from(reason: BootstrapError) -> Error {
        reason.of("exchange")
    }
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootstrapError::Missing { connected, expected, timeout } => {
                write!(f, "{connected} of {expected} processes have connected within {timeout:?}")
            }
            BootstrapError::Unreachable { root, source } => {
                write!(f, "the root at {root} does not respond: {source}")
            }
            BootstrapError::NotBootstrap { root, source } => {
                write!(f, "the program at {root} is not the root of a bootstrap: {source}")
            }
            BootstrapError::OtherVersion { address, version, own_version } => write!(
                f,
                "the process at {address} has version {version} of the protocol, and this process version {own_version}: use one version of hostbuf for all processes"
            ),
            BootstrapError::Contradiction { peer, count, root_count } => write!(
                f,
                "a process connected as number {peer} of {count}, expected 1 to {} of {root_count}",
                root_count - 1
            ),
            BootstrapError::Duplicate { peer, count } => {
                write!(f, "two processes connected as number {peer} of {count}")
            }
            BootstrapError::TimedOut { peer, count, timeout } => {
                write!(f, "process {peer} of {count} did not respond within {timeout:?}")
            }
            BootstrapError::Lost { peer, count, address: None } => {
                write!(f, "process {peer} of {count} has ended the connection: see its own error message")
            }
            BootstrapError::Lost { address: Some(address), .. } => {
                write!(f, "the root at {address} has ended the connection: see its own error message")
            }
            BootstrapError::Connection { peer, count, source } => {
                write!(f, "the connection to process {peer} of {count} failed: {source}")
            }
            BootstrapError::Listener { source } => write!(f, "accepting a connection failed: {source}"),
            BootstrapError::RecordTooLong { length, limit } => {
                write!(f, "a record has {length} bytes: at most {limit} are possible")
            }
            BootstrapError::Earlier { first } => {
                write!(f, "an earlier exchange failed ({first}): make a new bootstrap")
            }
            BootstrapError::Misordered { returned, index, count } => write!(
                f,
                "the bootstrap returned {returned} records to process {index} of {count}: expected one for each process, its own at its index"
            ),
            BootstrapError::InvalidRecord { peer, expected } => match expected {
                RecordContent::Endpoint => write!(
                    f,
                    "process {peer} sent no endpoint record of this version: use one version of hostbuf for all"
                ),
                RecordContent::Channels => {
                    write!(f, "process {peer} sent no channel requests: all have to make channels")
                }
                RecordContent::Error => {
                    write!(f, "process {peer} failed, and sent an error that this process cannot read")
                }
            },
        }
    }
}

impl std::error::Error for BootstrapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BootstrapError::Unreachable { source, .. }
            | BootstrapError::NotBootstrap { source, .. }
            | BootstrapError::Connection { source, .. }
            | BootstrapError::Listener { source } => Some(&**source),
            BootstrapError::Earlier { first } => Some(&**first),
            _ => None,
        }
    }
}
