//! The errors of a pool.

use std::time::Duration;
use std::{fmt, io};

use hostbuf_os::{Bytes, process};

/// Invalid sizes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidGeometry {
    /// A block has at least one byte.
    BlockBytes {
        /// The requested length of a block in bytes.
        requested: u64,
        /// The largest length.
        most: u64,
    },
    /// The number of blocks is out of range.
    Blocks {
        /// The requested number.
        requested: u32,
        /// The largest number.
        most: u32,
    },
    /// The number of readers is out of range.
    Readers {
        /// The requested number.
        requested: u32,
        /// The largest number.
        most: u32,
    },
    /// The number of blocks that stay readable after they were published leaves none to write.
    Retain {
        /// The requested number.
        requested: u32,
        /// The largest number.
        most: u32,
    },
    /// The number of blocks that one reader may hold is out of range.
    Quota {
        /// The requested number.
        requested: u32,
        /// The largest number.
        most: u32,
    },
}

impl fmt::Display for InvalidGeometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, requested, least, most) = match *self {
            InvalidGeometry::BlockBytes { requested, most } => ("block size", requested, 1, most),
            InvalidGeometry::Blocks { requested, most } => {
                ("number of blocks", requested.into(), 2, most.into())
            }
            InvalidGeometry::Readers { requested, most } => {
                ("number of readers", requested.into(), 1, most.into())
            }
            InvalidGeometry::Retain { requested, most } => {
                ("number of retained blocks", requested.into(), 1, most.into())
            }
            InvalidGeometry::Quota { requested, most } => {
                ("number of blocks for one reader", requested.into(), 1, most.into())
            }
        };
        write!(f, "invalid {what} {requested}: expected {least} to {most}")
    }
}

impl std::error::Error for InvalidGeometry {}

/// A request that the broker has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerRefusal {
    /// The request would exceed a limit, or the host's memory.
    NoSpace {
        /// The requested bytes.
        requested: u64,
        /// The bytes that are free.
        available: u64,
        /// The limit, the clients that hold the rest, and the remedy.
        details: String,
    },
    /// The segment of a token does not exist any more, or is one of another pool.
    UnknownSegment,
    /// The segment has no free row for another reader.
    NoRow {
        /// The number of readers that the segment has rows for.
        readers: u64,
    },
    /// The broker has just started, and clients of its predecessor may hold memory that it does not
    /// know yet.
    Recovering {
        /// The clients that it waits for.
        details: String,
    },
    /// The broker failed for this reason.
    Failed(String),
}

impl fmt::Display for BrokerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokerRefusal::NoSpace { requested, available, details } => write!(
                f,
                "not enough memory in the pool on {}: {} requested, {} free ({requested} and {available} bytes); {details}",
                process::host_name(),
                Bytes(*requested),
                Bytes(*available)
            ),
            BrokerRefusal::UnknownSegment => f.write_str(
                "the pool has no such segment: its producer has ended or closed it, or it is one of another pool",
            ),
            BrokerRefusal::NoRow { readers } => write!(
                f,
                "the segment has {readers} readers already: its producer must allow more of them when it makes the segment"
            ),
            BrokerRefusal::Recovering { details } => {
                write!(f, "the broker has just started and waits for clients of its predecessor: {details}")
            }
            BrokerRefusal::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for BrokerRefusal {}

/// An operation of a pool that failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no broker, and the mode of this connection requires one.
    NoBroker {
        /// The reason, and the remedy.
        why: String,
    },
    /// The broker has refused the request.
    Refused(BrokerRefusal),
    /// The broker has ended, and none has taken its place in time.
    BrokerGone,
    /// The broker has not answered in time.
    Timeout {
        /// The operation.
        doing: String,
        /// The process of the broker, if it is known and visible here. It is unknown to a client
        /// that connected before the broker took the socket over from a service manager.
        broker: Option<i32>,
        /// The time.
        limit: Duration,
    },
    /// An argument is invalid.
    Invalid {
        /// The argument, its value, and the expected values.
        what: String,
    },
    /// This process was forked from the one that connected to the pool.
    Forked,
    /// The driver has refused a request for memory of a GPU. The error is a `CudaError`.
    Gpu(Box<dyn std::error::Error + Send + Sync>),
    /// Mapping or checking a file failed.
    Memory(hostbuf_memory::Error),
    /// The operating system has refused an operation.
    Os {
        /// The operation, with its operands.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl PoolError {
    /// Makes an error from the kernel's error and the description of the operation.
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> PoolError {
        let doing = doing.into();
        move |source| PoolError::Os { doing, source: source.into() }
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::NoBroker { why } => f.write_str(why),
            PoolError::Refused(refusal) => refusal.fmt(f),
            PoolError::BrokerGone => write!(
                f,
                "the pool's broker on {} has ended: start another one (hostbuf broker)",
                process::host_name()
            ),
            PoolError::Timeout { doing, broker, limit } => {
                let (host, seconds) = (process::host_name(), limit.as_secs_f32());
                write!(f, "{doing}: the pool's broker on {host}")?;
                match broker {
                    Some(pid) => write!(
                        f,
                        " (process {pid}) has not answered for {seconds} s: continue it (kill -CONT {pid}) or end it"
                    ),
                    None => write!(
                        f,
                        " has not answered for {seconds} s: find its process with ss -xlp, and continue or end it"
                    ),
                }
            }
            PoolError::Invalid { what } => f.write_str(what),
            PoolError::Forked => f.write_str(
                "a forked child has no part in the pools of its parent: connect to the pool in the child",
            ),
            PoolError::Gpu(error) => error.fmt(f),
            PoolError::Memory(error) => error.fmt(f),
            PoolError::Os { doing, source } => hostbuf_os::error::describe(f, doing, source),
        }
    }
}

impl std::error::Error for PoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PoolError::Refused(refusal) => Some(refusal),
            PoolError::Gpu(error) => Some(&**error),
            PoolError::Memory(error) => Some(error),
            PoolError::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<hostbuf_memory::Error> for PoolError {
    fn from(error: hostbuf_memory::Error) -> PoolError {
        PoolError::Memory(error)
    }
}

#[cfg(feature = "cuda")]
impl From<hostbuf_cuda::CudaError> for PoolError {
    fn from(error: hostbuf_cuda::CudaError) -> PoolError {
        PoolError::Gpu(error.into())
    }
}

impl From<InvalidGeometry> for PoolError {
    fn from(error: InvalidGeometry) -> PoolError {
        PoolError::Invalid { what: error.to_string() }
    }
}
