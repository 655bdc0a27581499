//! Locking that ignores poisoning.

use std::sync::{LockResult, PoisonError};

/// An extension of the results of locks, which ignores that a thread has panicked with the lock.
///
/// The state under the locks of hostbuf is consistent wherever a panic is possible, and a panic of
/// one thread, such as in a registrar, must not make the registrations of all others unusable.
pub trait IgnorePoison<T> {
    /// Returns the guard, or the result of a wait, whether the lock is poisoned or not.
    fn ignore_poison(self) -> T;
}

impl<T> IgnorePoison<T> for LockResult<T> {
    #[inline]
    fn ignore_poison(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn the_state_of_a_poisoned_lock_is_readable() {
        let lock = Arc::new(Mutex::new(1));
        let poisoned = lock.clone();
        let panicked = std::thread::spawn(move || {
            *poisoned.lock().ignore_poison() = 2;
            let _held = poisoned.lock();
            panic!("with the lock held");
        });
        assert!(panicked.join().is_err() && lock.is_poisoned());
        assert_eq!(*lock.lock().ignore_poison(), 2);
    }
}
