//! The failure of a read.

use std::fmt;

use hostbuf::error::{Error, Failure};

/// The failure of a [`ReadConnection::read`](crate::ReadConnection::read). The connection is gone.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The device has ended the connection.
    Failed(Failure),
    /// The bytes were not there in time.
    TimedOut,
    /// The caller has given the read up.
    Cancelled,
    /// The device of this host has refused a request.
    Device(Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Failed(failure) => write!(f, "reading by RDMA: {failure}"),
            ReadError::TimedOut => f.write_str("the bytes were not read by RDMA in time"),
            ReadError::Cancelled => f.write_str("the read by RDMA was cancelled"),
            ReadError::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for ReadError {
    fn from(error: Error) -> ReadError {
        ReadError::Device(error)
    }
}
