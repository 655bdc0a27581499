//! Locks that a forked child needs. Another thread may hold such a lock at the moment of the fork,
//! and the child does not have that thread.

#![allow(unsafe_code, reason = "registers fork handlers by a foreign function")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::LocalKey;

use crate::poison::IgnorePoison;
use crate::process_lock::ProcessLock;

/// Holds the mutex `$lock`, a static of a `$value`, around each fork from the first call on, so
/// that it is unlocked in the child.
#[macro_export]
macro_rules! hold_around_fork {
    ($lock:ident: $value:ty) => {
        $crate::hold_around_fork!($lock: $value, $crate::forking::around)
    };
    ($lock:ident: $value:ty, $around:path) => {{
        use $crate::forking::{ForkingGuard, HandlerRegistration, lock_once};
        thread_local! {
            /// The guard of the lock while this thread forks.
            static WHILE_FORKING: ForkingGuard<$value> = const { ForkingGuard::new(None) };
        }
        extern "C" fn before() {
            lock_once(&$lock, &WHILE_FORKING);
        }
        extern "C" fn after() {
            let _ = WHILE_FORKING.try_with(ForkingGuard::take);
        }
        static REGISTRATION: HandlerRegistration = HandlerRegistration::new();
        REGISTRATION.once(|| $around(before, after));
    }};
}
pub use hold_around_fork;

/// The lock of a thread that lists the loaded objects, during which the dynamic loader holds a lock
/// of its own. The C library does not release that lock in a child, which would wait for it for
/// ever.
static SCANNING: Mutex<()> = Mutex::new(());

/// The registration of fork handlers.
///
/// A process may fork while one of its threads registers them, and that thread waits in the C
/// library until the fork is over. The child cannot tell whether it has them, and registers them
/// again: they may be called twice.
pub struct HandlerRegistration {
    is_over: AtomicBool,
    registering: ProcessLock,
}

impl HandlerRegistration {
    /// Makes the state before the registration.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it is meant for statics")]
    pub const fn new() -> HandlerRegistration {
        HandlerRegistration { is_over: AtomicBool::new(false), registering: ProcessLock::new() }
    }

    /// Calls `register`, unless it has been called.
    pub fn once(&'static self, register: impl FnOnce()) {
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        let _registering = self.registering.lock();
        if !self.is_over.load(Ordering::Acquire) {
            register();
            self.is_over.store(true, Ordering::Release);
        }
    }
}

/// The guard of a lock while a thread forks.
pub type ForkingGuard<T> = Cell<Option<MutexGuard<'static, T>>>;

/// Takes `lock` in a thread that forks, unless an earlier call has, and stores the guard in
/// `held`.
pub fn lock_once<T>(lock: &'static Mutex<T>, held: &'static LocalKey<ForkingGuard<T>>) {
    // In a thread that is ending no guard can be stored.
    let _ = held.try_with(|held| held.set(Some(held.take().unwrap_or_else(|| lock.lock().ignore_poison()))));
}

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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread::spawn;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;

    #[test]
    fn a_child_registers_the_handlers_that_a_thread_of_its_parent_was_registering() {
        static REGISTRATION: HandlerRegistration = HandlerRegistration::new();
        let (begin, has_begun) = channel();
        let (end, may_end) = channel::<()>();
        let registering = spawn(move || {
            REGISTRATION.once(|| {
                begin.send(()).unwrap();
                may_end.recv().unwrap();
            });
        });
        has_begun.recv().unwrap();
        // SAFETY: the child only computes and ends. The kernel ends it if it hangs.
        let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
            nix::unistd::alarm::set(10);
            let mut calls = 0;
            REGISTRATION.once(|| calls += 1);
            REGISTRATION.once(|| calls += 1);
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(calls != 1)) }
        };
        let status = waitpid(child, None).unwrap();
        end.send(()).unwrap();
        registering.join().unwrap();
        assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
        REGISTRATION.once(|| panic!("it is over"));
    }

    #[test]
    fn a_lock_is_taken_once_by_handlers_that_are_registered_twice() {
        static LOCK: Mutex<u32> = Mutex::new(0);
        thread_local! {
            static HELD: ForkingGuard<u32> = const { ForkingGuard::new(None) };
        }
        lock_once(&LOCK, &HELD);
        lock_once(&LOCK, &HELD);
        assert!(LOCK.try_lock().is_err());
        drop(HELD.take());
        assert!(LOCK.try_lock().is_ok());
    }
}
