//! The errors of a mirror.

use std::net::SocketAddr;
use std::{fmt, io};

use hostbuf_os::{Bytes, process};
use hostbuf_pool::{AcquireError, Token};

use crate::refusal::MirrorRefusal;

/// An operation of a mirror that failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum MirrorError {
    /// The block of the token could not be acquired on this host.
    Acquire(AcquireError),
    /// No connection could be made.
    Unreachable {
        /// The address of the receiver.
        peer: String,
        /// The reason.
        why: String,
    },
    /// The frame is longer than the receiver allows.
    TooLong {
        /// The length of the frame in bytes.
        length: u64,
        /// The largest length in bytes.
        most: u64,
        /// The address of the receiver.
        peer: SocketAddr,
    },
    /// The receiver has not published the frame.
    Refused {
        /// The token of the frame on this host.
        frame: Box<Token>,
        /// The address of the receiver.
        peer: SocketAddr,
        /// The reason.
        refusal: MirrorRefusal,
    },
    /// The frame was not acknowledged before its deadline. The receiver may have published it.
    Deadline {
        /// The token of the frame on this host.
        frame: Box<Token>,
        /// The address of the receiver.
        peer: SocketAddr,
        /// The number of bytes of the frame that were given to the connection. It is 0 if the
        /// frame was waiting for others, or for a connection.
        sent: u64,
        /// The number of frames that the receiver has acknowledged to this sender before.
        acknowledged: u64,
        /// The reason why the connection was lost, if there is none.
        lost: Option<String>,
    },
    /// The sender was dropped before the frame was acknowledged.
    Closed,
    /// An argument is invalid.
    Invalid {
        /// The argument, its value, and the expected values.
        what: String,
    },
    /// The operating system has refused an operation.
    Os {
        /// The operation, with its operands.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl MirrorError {
    /// Makes an error from the kernel's error and the description of the operation.
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> MirrorError {
        let doing = doing.into();
        move |source| MirrorError::Os { doing, source: source.into() }
    }
}

impl fmt::Display for MirrorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MirrorError::Acquire(error) => error.fmt(f),
            MirrorError::Unreachable { peer, why } => {
                write!(f, "cannot connect from {} to the mirror at {peer}: {why}", process::host_name())
            }
            MirrorError::TooLong { length, most, peer } => write!(
                f,
                "the frame has {}, and the mirror at {peer} takes at most {} ({length} and {most} bytes): raise its limit",
                Bytes(*length),
                Bytes(*most)
            ),
            MirrorError::Refused { frame, peer, refusal } => {
                write!(f, "the mirror at {peer} has not published {}: {refusal}", Frame(frame))
            }
            MirrorError::Deadline { frame, peer, sent, acknowledged, lost } => {
                write!(
                    f,
                    "the mirror at {peer} has not acknowledged {} in time: {sent} of {} bytes were sent, {acknowledged} earlier frames were acknowledged",
                    Frame(frame),
                    frame.length
                )?;
                match lost {
                    Some(why) => write!(f, "; the connection is lost: {why}"),
                    None => Ok(()),
                }
            }
            MirrorError::Closed => {
                f.write_str("the sender of the mirror was closed before the acknowledgement")
            }
            MirrorError::Invalid { what } => f.write_str(what),
            MirrorError::Os { doing, source } => hostbuf_os::error::describe(f, doing, source),
        }
    }
}

/// A frame as messages name it.
struct Frame<'t>(&'t Token);

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { pool, segment, block, generation, .. } = self.0;
        write!(f, "generation {generation} of block {block} (segment {segment} of pool {pool})")
    }
}

impl std::error::Error for MirrorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MirrorError::Acquire(error) => Some(error),
            MirrorError::Refused { refusal, .. } => Some(refusal),
            MirrorError::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<AcquireError> for MirrorError {
    fn from(error: AcquireError) -> MirrorError {
        MirrorError::Acquire(error)
    }
}
