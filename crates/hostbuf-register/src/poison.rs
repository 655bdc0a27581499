//! Locking that ignores poisoning.

use std::sync::{LockResult, PoisonError};

/// Ignores that a thread has panicked while it held a lock.
///
/// The state under the locks of this crate is consistent wherever a panic is possible, and a panic
/// of one thread, such as in a registrar, must not make the registrations of all others unusable.
pub(crate) trait IgnorePoison<T> {
    /// Returns the guard, or the result of a wait, whether the lock is poisoned or not.
    fn ignore_poison(self) -> T;
}

impl<T> IgnorePoison<T> for LockResult<T> {
    #[inline]
    fn ignore_poison(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}
