//! A lock that is free in a forked child.

#![allow(unsafe_code, reason = "shares a lock between threads whose value a child replaces")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::fork_guard::ForkGuard;
use crate::poison::IgnorePoison;

/// A lock of each process: a forked child finds it free, whatever thread of the parent held it at
/// the fork. It suits operations that take long, and guards no data: what the holder was changing
/// at the fork stays half changed in the child. Data needs
/// [`hold_around_fork`](crate::forking::hold_around_fork), for which forks wait.
#[derive(Debug)]
pub struct ProcessLock(AtomicPtr<Inherited>);

/// The lock of one process, and its proof that it is not a parent's.
#[derive(Debug)]
struct Inherited {
    process: ForkGuard,
    lock: Mutex<()>,
}

impl ProcessLock {
    /// Makes a free lock.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it is meant for statics")]
    pub const fn new() -> ProcessLock {
        ProcessLock(AtomicPtr::new(null_mut()))
    }

    /// Takes the lock.
    pub fn lock(&'static self) -> MutexGuard<'static, ()> {
        self.of_process().lock().ignore_poison()
    }

    fn of_process(&self) -> &'static Mutex<()> {
        let mut known = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or from below and never freed.
            if let Some(known) = unsafe { known.as_ref() }.filter(|known| known.process.is_current()) {
                return &known.lock;
            }
            let own =
                Box::into_raw(Box::new(Inherited { process: ForkGuard::current(), lock: Mutex::new(()) }));
            match self.0.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: never freed, since it has been stored.
                Ok(_) => return unsafe { &(*own).lock },
                Err(other) => {
                    // SAFETY: from into_raw() above, and nobody else knows it.
                    drop(unsafe { Box::from_raw(own) });
                    known = other;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn a_lock_that_another_thread_holds_is_free_in_a_child() {
        static LOCK: ProcessLock = ProcessLock::new();
        let (locked, is_locked) = std::sync::mpsc::channel();
        let (go, end) = std::sync::mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let _guard = LOCK.lock();
            locked.send(()).unwrap();
            end.recv().unwrap();
        });
        is_locked.recv().unwrap();
        assert!(LOCK.of_process().try_lock().is_err());
        // SAFETY: the child only locks and ends.
        let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
            let free = LOCK.of_process().try_lock();
            let well = free.is_ok() && LOCK.of_process().try_lock().is_err();
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!well)) }
        };
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        assert!(LOCK.of_process().try_lock().is_err());
        go.send(()).unwrap();
        holder.join().unwrap();
        drop(LOCK.lock());
    }
}
