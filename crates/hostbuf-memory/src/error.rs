//! The errors of this crate.

use std::{fmt, io};

use hostbuf_os::{Bytes, process};

/// The result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation on memory that failed, with its operands.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This host does not support the request.
    Unsupported {
        /// The request.
        what: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// This host cannot provide a placement.
    Placement {
        /// The failed action, with its operands: `place memory on node 1`.
        action: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// There is not enough memory.
    NoSpace(NoSpace),
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
    /// The bytes of a copy differ from those that were read.
    Copy {
        /// The copy and both checksums.
        why: String,
    },
    /// A process that allocates pages was ended by a signal, and not for lack of memory.
    WorkerEnded {
        /// The failed operation, with its operands.
        doing: String,
        /// The process number.
        pid: i32,
        /// The signal.
        signal: i32,
    },
}

/// A request for more memory than there is. The check has allocated no page, or only pages of a
/// child process.
///
/// It is sent between ranks field by field, so it is exhaustive.
#[derive(Clone, Debug, PartialEq, Eq)]
// Exhaustive: the form that carries an error to other processes has an operand for each field.
pub struct NoSpace {
    /// The host without enough memory.
    pub host: String,
    /// The number of requested bytes.
    pub requested: u64,
    /// The number of available bytes.
    pub available: u64,
    /// The limit that applies, and its size.
    pub limit: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for NoSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoSpace { host, requested, available, limit, remedy } = self;
        write!(
            f,
            "not enough memory on {host}: {} requested, {} available ({requested} and {available} bytes), limited by {limit}: {remedy}",
            Bytes(*requested),
            Bytes(*available)
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported { what, why } => write!(f, "{what} is not supported here: {why}"),
            Error::Placement { action, why } => write!(f, "cannot {action}: {why}"),
            Error::NoSpace(no_space) => no_space.fmt(f),
            Error::Invalid { what } => f.write_str(what),
            Error::Copy { why } => f.write_str(why),
            Error::Os { doing, source } => hostbuf_os::error::describe(f, doing, source),
            Error::WorkerEnded { doing, pid, signal } => write!(
                f,
                "{doing} failed: its worker process {pid} was ended by {}, which the kernel's OOM killer has not sent: find \
                 the sender, and start the job again",
                process::signal_name(*signal)
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<hostbuf_os::Error> for Error {
    fn from(error: hostbuf_os::Error) -> Error {
        Error::Os { doing: error.doing, source: error.source }
    }
}

impl Error {
    /// Returns the error of two attempts: the first lacked huge pages, and this is the error of the
    /// second. Another lack of memory says less than the first.
    #[must_use]
    pub fn after(self, first: NoSpace) -> Error {
        if matches!(self, Error::NoSpace(_)) { Error::NoSpace(first) } else { self }
    }

    /// Makes an error from the kernel's error and the description of the operation.
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        let doing = doing.into();
        move |source| Error::Os { doing, source: source.into() }
    }
}
