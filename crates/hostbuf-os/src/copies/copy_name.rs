//! The name of a copy, for messages.

use std::fmt;

/// The object that contains a copy, and the version of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyName {
    /// The path of the object.
    pub path: String,
    /// The version of the library in it.
    pub version: String,
}

impl fmt::Display for CopyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (hostbuf {})", self.path, self.version)
    }
}
