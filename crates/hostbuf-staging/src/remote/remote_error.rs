//! The reasons why an object of a server cannot be read.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;
use std::{fmt, io};

/// The reason why an object of a server cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteError {
    /// The address, without credentials and without its query, which may have a signature.
    pub url: String,
    /// The range of the request; `None` before the first one.
    pub range: Option<Range<u64>>,
    /// The number of attempts in a row that have failed.
    pub attempts: u32,
    /// The reason. Of several attempts, that of the last one.
    pub problem: RemoteProblem,
}

/// The kind of a [`RemoteError`]: the mistake of a request, or of the answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteProblem {
    /// The address is invalid.
    Address {
        /// The expected form, and the mistake.
        why: String,
    },
    /// An option of the client is invalid.
    Option {
        /// The option, and the mistake.
        why: String,
    },
    /// There are no credentials, or they cannot be used.
    Credentials {
        /// The reason.
        why: String,
    },
    /// No connection to the server can be made.
    Connect {
        /// The reason.
        why: String,
    },
    /// The certificate of the server is not accepted.
    Tls {
        /// The reason.
        why: String,
    },
    /// The connection has ended before the answer did, or the answer is no HTTP.
    Cut {
        /// The number of bytes of the range that have arrived, of all attempts.
        received: u64,
        /// The reason.
        why: String,
    },
    /// The server has sent nothing for a while.
    Timeout {
        /// The time that was waited for.
        timeout: Duration,
    },
    /// There is no such object.
    NotFound {
        /// The status, and the server's reason if there is one.
        why: String,
    },
    /// The credentials do not permit the request.
    Denied {
        /// The status, and the server's reason if there is one.
        why: String,
    },
    /// The server has answered with another status.
    Status {
        /// The status.
        status: u16,
        /// The server's reason, if there is one.
        why: String,
    },
    /// The server redirects the request too often, or to an address that cannot be used.
    Redirect {
        /// The reason.
        why: String,
    },
    /// The server has sent the whole object instead of the range.
    NoRanges,
    /// The server does not state the length of the object.
    NoLength,
    /// The server has sent another range.
    OtherRange {
        /// The range that it states, or the reason why it states none.
        stated: String,
    },
    /// The server has sent more bytes than it was asked for.
    TooLong,
    /// The server has sent the bytes in a compressed form.
    Encoded {
        /// The encoding.
        encoding: String,
    },
    /// The object has changed since it was opened.
    Changed {
        /// The property that differs, with both values.
        what: String,
    },
    /// This process was forked from the one that made the client.
    Forked,
}

impl RemoteProblem {
    /// Returns whether another attempt may succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            RemoteProblem::Connect { .. } | RemoteProblem::Cut { .. } | RemoteProblem::Timeout { .. } => true,
            RemoteProblem::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            RemoteProblem::Address { .. } | RemoteProblem::Option { .. } => io::ErrorKind::InvalidInput,
            RemoteProblem::Credentials { .. } | RemoteProblem::Denied { .. } => {
                io::ErrorKind::PermissionDenied
            }
            RemoteProblem::Connect { .. } => io::ErrorKind::NotConnected,
            RemoteProblem::Cut { .. } => io::ErrorKind::ConnectionReset,
            RemoteProblem::Timeout { .. } => io::ErrorKind::TimedOut,
            RemoteProblem::NotFound { .. } => io::ErrorKind::NotFound,
            RemoteProblem::NoRanges | RemoteProblem::NoLength | RemoteProblem::Forked => {
                io::ErrorKind::Unsupported
            }
            _ => io::ErrorKind::InvalidData,
        }
    }
}

impl fmt::Display for RemoteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use RemoteProblem::{
            Address, Changed, Connect, Credentials, Cut, Denied, Encoded, Forked, NoLength, NoRanges,
            NotFound, Option, OtherRange, Redirect, Status, Timeout, Tls, TooLong,
        };
        match self {
            Address { why } => write!(f, "the address is invalid: {why}"),
            Option { why } => write!(f, "{why}"),
            Credentials { why } => write!(f, "the credentials cannot be used: {why}"),
            Connect { why } => write!(f, "cannot connect to the server: {why}"),
            Tls { why } => write!(
                f,
                "the certificate of the server is not accepted: {why}. Add the certificate of its authority to those \
                 of the system, or to the option certificates"
            ),
            Cut { received, why } => {
                write!(f, "the answer ended after {received} bytes of the range: {why}")
            }
            Timeout { timeout } => write!(
                f,
                "the server sent nothing for {timeout:?}. Raise the option timeout if it is only slow"
            ),
            NotFound { why } => write!(f, "there is no such object: {why}"),
            Denied { why } => write!(
                f,
                "the server refuses access: {why}. Check the credentials and their permissions, or sign the address \
                 again if it has expired"
            ),
            Status { status, why } if why.is_empty() => write!(f, "the server answered with status {status}"),
            Status { status, why } => write!(f, "the server answered with status {status}: {why}"),
            Redirect { why } => write!(f, "the server redirects the request: {why}"),
            NoRanges => write!(
                f,
                "the server sends the whole object instead of the range. Use a server that supports ranges, or \
                 download the object to a file"
            ),
            NoLength => write!(f, "the server does not state the length of the object"),
            OtherRange { stated } => write!(f, "the server sent another range: {stated}"),
            TooLong => write!(f, "the server sent more bytes than the range has"),
            Encoded { encoding } => write!(
                f,
                "the server sent the bytes compressed ({encoding}), although the request excludes it"
            ),
            Changed { what } => {
                write!(f, "the object has changed since it was opened: {what}. Open it again")
            }
            Forked => write!(
                f,
                "this process was forked from the one that made the client. Make a client in this process"
            ),
        }
    }
}

impl RemoteError {
    /// Makes an error that needs no request.
    pub(super) fn before(url: impl Into<String>, problem: RemoteProblem) -> RemoteError {
        RemoteError { url: url.into(), range: None, attempts: 0, problem }
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.url.is_empty() {
            write!(f, "{}", self.url)?;
            if let Some(Range { start, end }) = &self.range {
                write!(f, ", bytes {start} to {end}")?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}", self.problem)?;
        match self.attempts {
            0 | 1 => Ok(()),
            attempts => write!(f, " ({attempts} attempts in a row have failed)"),
        }
    }
}

impl Error for RemoteError {}

impl From<RemoteError> for io::Error {
    fn from(error: RemoteError) -> io::Error {
        io::Error::new(error.problem.kind(), error)
    }
}
