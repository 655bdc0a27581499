//! The form of a refusal between processes.

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum RefusalKind {
    /// The request would exceed a limit, or the host's memory.
    NoSpace = 1,
    /// The pool has no such segment.
    UnknownSegment = 2,
    /// All rows of the segment have readers.
    NoRow = 3,
    /// The broker waits for the clients of its predecessor.
    Recovering = 4,
    /// The request is invalid.
    Invalid = 5,
    /// The operating system refused an operation.
    Os = 6,
}

/// A refusal as a message carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusalRecord<'a> {
    /// The kind.
    pub(crate) kind: RefusalKind,
    /// The requested bytes or rows.
    pub(crate) requested: u64,
    /// The available bytes or rows.
    pub(crate) available: u64,
    /// The limit that applies, who holds the rest, and the remedy.
    pub(crate) text: &'a str,
}

impl RefusalKind {
    /// Returns the kind with this number. A kind of a later build counts as invalid.
    pub(super) fn from_number(number: u64) -> RefusalKind {
        use RefusalKind::*;
        let known = [NoSpace, UnknownSegment, NoRow, Recovering, Invalid, Os];
        known.into_iter().find(|&kind| kind as u64 == number).unwrap_or(Invalid)
    }
}
