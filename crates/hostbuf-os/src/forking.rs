//! Locks that a forked child needs: another thread may hold one at the moment of the fork, and the
//! child has no such thread.

#![allow(unsafe_code)]

/// Calls `before` in a thread that forks, and `after` in it and in its child when it has forked: so
/// that a lock taken in between is nobody else's. For the life of the process; a child that was
/// made without the C library's `fork` is on its own.
pub fn around(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: both stay, as functions of this library do.
    let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    if refused != 0 {
        tracing::warn!(refused, "a child that is forked from several threads may hang when it uses hostbuf");
    }
}

/// Holds the mutex `$lock`, a static of a `$value`, around each fork from the first call on, so
/// that a child finds it free.
#[macro_export]
macro_rules! hold_around_fork {
    ($lock:ident: $value:ty) => {{
        use std::cell::Cell;
        use std::sync::{MutexGuard, Once, PoisonError};
        thread_local! {
            /// The lock, while this thread forks.
            static HELD: Cell<Option<MutexGuard<'static, $value>>> = const { Cell::new(None) };
        }
        extern "C" fn before() {
            let guard = $lock.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread that is ending has no place for it any more, and goes without.
            let _ = HELD.try_with(|held| held.set(Some(guard)));
        }
        extern "C" fn after() {
            let _ = HELD.try_with(Cell::take);
        }
        static ONCE: Once = Once::new();
        ONCE.call_once(|| $crate::forking::around(before, after));
    }};
}
pub use hold_around_fork;
