//! Checks that did not hold.

/// The description of a check that did not hold.
pub(crate) type BrokenPromise = String;
