//! Locks that a forked child needs. Another thread may hold such a lock at the moment of the fork,
//! and the child does not have that thread.

#![allow(unsafe_code, reason = "registers fork handlers by a foreign function")]

use std::sync::{Mutex, MutexGuard};

use crate::poison::IgnorePoison;

/// Holds the mutex `$lock`, a static of a `$value`, around each fork from the first call on, so
/// that it is unlocked in the child.
#[macro_export]
macro_rules! hold_around_fork {
    ($lock:ident: $value:ty) => {
        $crate::hold_around_fork!($lock: $value, $crate::forking::around)
    };
    ($lock:ident: $value:ty, $around:path) => {{
        use std::cell::Cell;
        use std::sync::{MutexGuard, Once};

        use $crate::poison::IgnorePoison;
        thread_local! {
            /// The guard of the lock while this thread forks.
            static WHILE_FORKING: Cell<Option<MutexGuard<'static, $value>>> = const { Cell::new(None) };
        }
        extern "C" fn before() {
            let guard = $lock.lock().ignore_poison();
            // In a thread that is ending the guard cannot be stored, and is dropped.
            let _ = WHILE_FORKING.try_with(|held| held.set(Some(guard)));
        }
        extern "C" fn after() {
            let _ = WHILE_FORKING.try_with(Cell::take);
        }
        static ONCE: Once = Once::new();
        ONCE.call_once(|| $around(before, after));
    }};
}
pub use hold_around_fork;

/// The lock of a thread that lists the loaded objects, during which the dynamic loader holds a lock
/// of its own. The C library does not release that lock in a child, which would wait for it for
/// ever.
static SCANNING: Mutex<()> = Mutex::new(());

/// Calls `before` in a thread that forks, and `after` in the thread and in its child after the
/// fork, so that a lock that `before` takes is not held by another thread. The functions stay
/// registered for the life of the process. They are not called for a child that was created without
/// the C library's `fork`.
pub fn around(before: extern "C" fn(), after: extern "C" fn()) {
    around_with_child(before, after, after);
}

/// Calls `before` in a thread that forks, `parent` in the thread after the fork, and `child` in its
/// child. See [`around`].
pub(crate) fn around_with_child(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    hold_scanning();
    register(before, parent, child);
}

/// Locks the listing of loaded objects, which no fork interrupts.
pub(crate) fn scanning() -> MutexGuard<'static, ()> {
    hold_scanning();
    SCANNING.lock().ignore_poison()
}

/// Holds `SCANNING` around each fork. It may be taken under every other lock. Fork handlers run in
/// the reverse order of their registration, so this has to be registered before all others.
fn hold_scanning() {
    hold_around_fork!(SCANNING: (), register_both);
}

fn register_both(before: extern "C" fn(), after: extern "C" fn()) {
    register(before, after, after);
}

fn register(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions stay loaded, as all functions of this library do.
    let refused = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    if refused != 0 {
        tracing::warn!(
            refused,
            "cannot register fork handlers: a child that is forked from several threads may hang when it uses hostbuf"
        );
    }
}
