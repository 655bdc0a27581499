//! Places in a buffer.

use std::fmt;

/// The number of bytes from the start of a buffer to a place in it, which is the same on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: a number, and nothing else.
pub struct Offset(pub usize);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
