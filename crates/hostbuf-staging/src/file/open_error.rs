//! The reason why a file cannot be opened.

use std::path::PathBuf;
use std::{fmt, io};

/// The reason why a file cannot be opened, with its path. The [`io::Error`] of
/// [`FileOptions::open`](super::FileOptions::open) contains it ([`io::Error::downcast`]).
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenError {
    /// The path.
    pub path: PathBuf,
    /// The kernel's error, or the reason why the file or its backend is refused.
    pub source: io::Error,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.source)
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(error.source.kind(), error)
    }
}
