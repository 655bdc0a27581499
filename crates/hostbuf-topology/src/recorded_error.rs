//! Errors of recorded trees.

use std::path::PathBuf;
use std::{fmt, io};

/// An error with a recorded tree.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordedError {
    /// The folder contains no recorded tree.
    NotATree {
        /// The folder.
        root: PathBuf,
    },
    /// The folder for a new tree already contains one.
    Exists {
        /// The folder.
        root: PathBuf,
    },
    /// An operation on files failed.
    Io {
        /// The failed operation, with its operands.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl fmt::Display for RecordedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordedError::NotATree { root } => write!(
                f,
                "{} contains no recorded topology, since it has no folder sys: name a folder with sys and proc, as \
                 `hostbuf topology --record` and hwloc-gather-topology write it",
                root.display()
            ),
            RecordedError::Exists { root } => write!(
                f,
                "cannot record a topology in {}, which already contains a folder sys: name a new or empty folder",
                root.display()
            ),
            RecordedError::Io { doing, source } => write!(f, "{doing} failed: {source}"),
        }
    }
}

impl std::error::Error for RecordedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RecordedError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
