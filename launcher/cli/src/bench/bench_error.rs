//! The reasons why files cannot be measured.

use std::path::PathBuf;
use std::{fmt, io};

use hostbuf::{Error, ErrorClass};
use hostbuf_staging::{RingError, TransferError};

use crate::printable::printable;

/// The reason why files cannot be measured.
#[derive(Debug)]
pub(super) enum BenchError {
    /// An operation on a file failed.
    File { doing: &'static str, path: PathBuf, source: io::Error },
    /// A path is not that of a file with bytes.
    Unsuitable { path: PathBuf, why: &'static str },
    /// An option is invalid.
    Option { what: String },
    /// The limits of this process leave too little memory.
    Memory(Error),
    /// There is no such GPU, or its driver refused.
    Gpu { number: u32, why: String },
    /// There is no ring.
    Ring(RingError),
    /// A read failed.
    Transfer(TransferError),
}

impl BenchError {
    /// Returns the class, which is the exit status.
    pub(super) fn class(&self) -> ErrorClass {
        match self {
            BenchError::Option { .. } | BenchError::Gpu { .. } => ErrorClass::Invalid,
            BenchError::Memory(error) => error.class(),
            _ => ErrorClass::General,
        }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            BenchError::File { doing, path, source } if source.kind() == io::ErrorKind::NotFound => {
                format!("{doing} {}: {source}: check the path", path.display())
            }
            BenchError::File { doing, path, source } => format!("{doing} {}: {source}", path.display()),
            BenchError::Unsuitable { path, why } => format!("{} {why}", path.display()),
            BenchError::Option { what } => what.clone(),
            BenchError::Memory(error) => error.to_string(),
            BenchError::Gpu { number, why } => format!("GPU {number}: {why}"),
            BenchError::Ring(error) => error.to_string(),
            BenchError::Transfer(error) => error.to_string(),
        };
        f.write_str(&printable(&text))
    }
}

impl From<RingError> for BenchError {
    fn from(error: RingError) -> BenchError {
        BenchError::Ring(error)
    }
}

impl From<TransferError> for BenchError {
    fn from(error: TransferError) -> BenchError {
        BenchError::Transfer(error)
    }
}
