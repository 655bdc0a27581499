//! The certainty that nothing writes to a frozen buffer.

/// The certainty that no process on this host can write to a frozen buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// The kernel sealed the memory against writing, which it does only while there is no writable
    /// mapping in any process.
    Sealed,
    /// The ranks that froze the buffer can no longer write, and no process can create a new
    /// writable mapping, but a process may still have an earlier one.
    Weaker {
        /// The processes that still have one, as far as `/proc` shows them, or another obstacle.
        why: String,
    },
}
