//! The errors of this crate, with messages for the users who have to resolve them.

use std::{fmt, io};

pub use hostbuf_memory::NoSpace;
pub use hostbuf_os::Bytes;
use hostbuf_protocol::failure::ErrorClass;
use hostbuf_register::InvalidSpan;

pub use crate::attach_error::AttachError;

/// The result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an RDMA operation on another host has failed. The number in parentheses is the
/// verbs status (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The other side's key does not allow the operation, or its registration has ended (10).
    RemoteAccess,
    /// The other side has not replied to any retry: it has ended, or the network is broken (12).
    NoAnswer,
    /// The operation was not attempted, since an earlier one on the same connection has failed (5).
    Flushed,
    /// The time limit has passed. The operation may still be in progress.
    Timeout,
    /// The other side has refused the connection.
    Refused,
    /// The other side has closed the connection.
    Closed,
    /// The other side has aborted the common operation because of an error that it reports itself.
    GaveUp,
    /// Another verbs status.
    Status(u32),
}

impl Failure {
    /// Returns the failure of a completion with this verbs status (`ibv_wc_status`).
    #[must_use]
    pub fn from_status(status: u32) -> Failure {
        match status {
            5 => Failure::Flushed,
            10 => Failure::RemoteAccess,
            12 => Failure::NoAnswer,
            other => Failure::Status(other),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::RemoteAccess => {
                write!(
                    f,
                    "the remote key does not allow the operation: the buffer there is frozen, or its registration has ended (status 10)"
                )
            }
            Failure::NoAnswer => {
                write!(
                    f,
                    "the host no longer answers: its process has ended, or the network is broken (status 12)"
                )
            }
            Failure::Flushed => {
                write!(
                    f,
                    "the operation was not attempted, since an earlier one on this connection has failed (status 5)"
                )
            }
            Failure::Timeout => write!(f, "the operation timed out"),
            Failure::Closed => write!(f, "the host has closed the connection"),
            Failure::GaveUp => {
                write!(f, "the host has aborted the operation because of an error that it reports itself")
            }
            Failure::Refused => write!(f, "the host refuses the connection; its log states the reason"),
            Failure::Status(status) => write!(f, "the operation has failed with verbs status {status}"),
        }
    }
}

/// An operation that failed, with its operands.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This host, or this build, does not support the request.
    Unsupported {
        /// The request.
        what: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// There is not enough memory.
    NoSpace(NoSpace),
    /// An error of a memory file that is none of the others: a placement that this host cannot
    /// provide, or a worker process that was ended.
    Memory(hostbuf_memory::Error),
    /// The participants have found no common address, or have made different requests.
    Disagreed {
        /// The host that differs.
        host: String,
        /// The rank that differs.
        rank: usize,
        /// The conflicting mapping, or the two requests.
        why: String,
    },
    /// An argument is invalid.
    Invalid {
        /// The argument, its value, and the expected values.
        what: String,
    },
    /// A system call failed.
    Os {
        /// The failed operation, with its operands.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no buffer to attach to, or it is not the expected one.
    Attach(AttachError),
    /// A rank has ended, or could not continue, before all ranks had the buffer.
    Lost {
        /// The rank, its host, and the reason.
        why: String,
    },
    /// A word of the control page is invalid. Nothing was changed.
    Corrupt {
        /// The name of the word.
        word: &'static str,
        /// The value of the word.
        found: u64,
    },
    /// The arena has too few bytes left.
    Full {
        /// The number of bytes requested.
        requested: u64,
        /// The number of bytes left.
        left: u64,
    },
    /// Filling has failed in this process.
    Fill {
        /// The reason.
        why: String,
    },
    /// An RDMA operation on another host has failed.
    Peer {
        /// The number of the host, from 0 in the order of the fabric.
        host: usize,
        /// The failed operation.
        doing: String,
        /// The reason of the failure.
        failure: Failure,
    },
    /// The buffer cannot be frozen; or it is frozen, and the operation would write to it, or its
    /// copies on NUMA nodes could not be made.
    Freeze {
        /// The reason.
        why: String,
    },
    /// The received bytes differ from the sent ones.
    Replicate {
        /// The receiving host.
        host: String,
        /// The difference.
        why: String,
    },
    /// A collective operation failed.
    Collective {
        /// The name of the operation.
        operation: &'static str,
        /// The reason.
        why: String,
    },
    /// The processes that RDMA is to connect could not exchange their addresses.
    Bootstrap {
        /// The name of the operation.
        operation: &'static str,
        /// The reason: a `hostbuf_rdma::BootstrapError`, or the error of another implementation of
        /// `hostbuf_rdma::Bootstrap`.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A registration failed.
    Register(hostbuf_register::Error),
    /// Another rank of the same collective call has failed; all other ranks return this.
    Elsewhere {
        /// The host of the rank that failed.
        host: String,
        /// The rank that failed.
        rank: usize,
        /// The class of its error.
        class: ErrorClass,
        /// The message of its error.
        message: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported { what, why } => write!(f, "{what} is not supported here: {why}"),
            Error::NoSpace(no_space) => no_space.fmt(f),
            Error::Memory(error) => error.fmt(f),
            Error::Disagreed { host, rank, why } => {
                write!(f, "no agreement among the ranks: rank {rank} on {host}: {why}")
            }
            Error::Invalid { what } => write!(f, "{what}"),
            Error::Os { doing, source } => hostbuf_os::error::describe(f, doing, source),
            Error::Attach(reason) => write!(f, "cannot attach to a host buffer: {reason}"),
            Error::Lost { why } => f.write_str(why),
            Error::Corrupt { word, found } => {
                write!(
                    f,
                    "the control page is damaged: {word} is {found:#x}. A process has overwritten it; start the job again"
                )
            }
            Error::Full { requested, left } => write!(
                f,
                "the arena is full: {} requested, {} left. Make the buffer larger (--size, or the size passed to allocate); the arena begins behind its sections",
                Bytes(*requested),
                Bytes(*left)
            ),
            Error::Fill { why } => write!(f, "filling the buffer failed: {why}"),
            Error::Peer { host, doing, failure } => write!(f, "{doing}, host {host}: {failure}"),
            Error::Freeze { why } => f.write_str(why),
            Error::Replicate { host, why } => write!(f, "replication to {host} failed: {why}"),
            Error::Collective { operation, why } => {
                write!(f, "collective operation {operation} failed: {why}")
            }
            Error::Bootstrap { operation, source } => {
                write!(f, "collective operation {operation} failed: {source}")
            }
            Error::Register(error) => error.fmt(f),
            Error::Elsewhere { host, rank, message, .. } => write!(f, "rank {rank} on {host}: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } => Some(source),
            Error::Memory(error) => error.source(),
            Error::Attach(reason) => Some(reason),
            Error::Bootstrap { source, .. } => Some(&**source),
            Error::Register(error) => error.source(),
            _ => None,
        }
    }
}

impl From<hostbuf_register::Error> for Error {
    fn from(error: hostbuf_register::Error) -> Error {
        match error {
            hostbuf_register::Error::Unsupported { what, why } => Error::Unsupported { what, why },
            hostbuf_register::Error::NoSpace(no_space) => Error::NoSpace(no_space),
            hostbuf_register::Error::Invalid { what } => Error::Invalid { what },
            hostbuf_register::Error::Os { doing, source } => Error::Os { doing, source },
            hostbuf_register::Error::Freeze { why } => Error::Freeze { why },
            other => Error::Register(other),
        }
    }
}

impl From<AttachError> for Error {
    fn from(reason: AttachError) -> Error {
        Error::Attach(reason)
    }
}

impl From<InvalidSpan> for Error {
    fn from(invalid: InvalidSpan) -> Error {
        Error::Invalid { what: invalid.to_string() }
    }
}

impl From<hostbuf_memory::Error> for Error {
    fn from(error: hostbuf_memory::Error) -> Error {
        match error {
            hostbuf_memory::Error::Unsupported { what, why } => Error::Unsupported { what, why },
            hostbuf_memory::Error::NoSpace(no_space) => Error::NoSpace(no_space),
            hostbuf_memory::Error::Invalid { what } => Error::Invalid { what },
            hostbuf_memory::Error::Os { doing, source } => Error::Os { doing, source },
            other => Error::Memory(other),
        }
    }
}

impl Error {
    /// Makes an error from the kernel's error and the description of the operation.
    pub fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        let doing = doing.into();
        move |source| Error::Os { doing, source: source.into() }
    }

    /// Returns the variant's name, for logs and for other languages. An error with a status of its
    /// own in other languages has the name of that status.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Unsupported { .. } | Error::Memory(hostbuf_memory::Error::Placement { .. }) => {
                "Unsupported"
            }
            Error::NoSpace { .. } => "NoSpace",
            Error::Memory(hostbuf_memory::Error::WorkerEnded { .. }) => "Fill",
            Error::Memory(hostbuf_memory::Error::Copy { .. }) => "Freeze",
            Error::Memory(_) => "Memory",
            Error::Disagreed { .. } => "Disagreed",
            Error::Invalid { .. } => "Invalid",
            Error::Os { .. } => "Os",
            Error::Attach(AttachError::JobFailed(_)) => "JobFailed",
            Error::Attach(_) => "Attach",
            Error::Lost { .. } => "Lost",
            Error::Corrupt { .. } => "Corrupt",
            Error::Full { .. } => "Full",
            Error::Fill { .. } => "Fill",
            Error::Peer { .. } => "Peer",
            Error::Freeze { .. } => "Freeze",
            Error::Replicate { .. } => "Replicate",
            Error::Collective { .. } | Error::Bootstrap { .. } => "Collective",
            Error::Register(error) => error.kind(),
            Error::Elsewhere { .. } => "Elsewhere",
        }
    }

    /// Returns the class, by which programs act on an error and commands exit. The class of an
    /// error of another rank is the one that it has there, and so is that of a failed job.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        use hostbuf_register::Error as Register;
        match self {
            Error::Memory(hostbuf_memory::Error::WorkerEnded { .. }) => ErrorClass::Fill,
            Error::Memory(hostbuf_memory::Error::Copy { .. }) => ErrorClass::Freeze,
            Error::Unsupported { .. } | Error::Memory(_) => ErrorClass::Unsupported,
            Error::NoSpace(_) => ErrorClass::NoSpace,
            Error::Disagreed { .. } => ErrorClass::Disagreed,
            Error::Invalid { .. } => ErrorClass::Invalid,
            Error::Os { source, .. } if source.kind() == io::ErrorKind::OutOfMemory => ErrorClass::NoSpace,
            Error::Os { .. } => ErrorClass::Os,
            Error::Attach(AttachError::JobFailed(error)) => error.class,
            Error::Attach(_) => ErrorClass::Attach,
            Error::Lost { .. } => ErrorClass::Lost,
            Error::Corrupt { .. } => ErrorClass::Corrupt,
            Error::Full { .. } => ErrorClass::Full,
            Error::Fill { .. } => ErrorClass::Fill,
            Error::Peer { .. } => ErrorClass::Peer,
            Error::Freeze { .. } => ErrorClass::Freeze,
            Error::Replicate { .. } => ErrorClass::Replicate,
            Error::Collective { .. } | Error::Bootstrap { .. } => ErrorClass::Collective,
            Error::Register(Register::Registration { .. }) => ErrorClass::Registration,
            Error::Register(Register::Budget { .. }) => ErrorClass::Budget,
            Error::Register(Register::Limit { .. }) => ErrorClass::Limit,
            Error::Register(Register::Forked) => ErrorClass::Forked,
            Error::Register(Register::OtherCopy { .. }) => ErrorClass::Unsupported,
            Error::Register(_) => ErrorClass::General,
            Error::Elsewhere { class, .. } => *class,
        }
    }

    pub(crate) fn not_frozen(why: impl fmt::Display) -> Error {
        Error::Freeze { why: format!("the buffer cannot be frozen: {why}") }
    }

    /// Makes the error of an invalid argument from the message for the user.
    pub fn invalid(what: impl Into<String>) -> Error {
        Error::Invalid { what: what.into() }
    }
}
