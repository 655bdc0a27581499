//! A lock that is free in a forked child.

use std::sync::{Mutex, MutexGuard};

use crate::per_process::PerProcess;
use crate::poison::IgnorePoison;

/// A lock of each process: a forked child finds it free, whatever thread of the parent held it at
/// the fork. It suits operations that take long, and guards no data: what the holder was changing
/// at the fork stays half changed in the child. Data needs
/// [`hold_around_fork`](crate::forking::hold_around_fork), for which forks wait, or a
/// [`PerProcess`] of its own.
#[derive(Debug)]
pub struct ProcessLock(PerProcess<Mutex<()>>);

impl ProcessLock {
    /// Makes a free lock.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it is meant for statics")]
    pub const fn new() -> ProcessLock {
        ProcessLock(PerProcess::new())
    }

    /// Takes the lock.
    pub fn lock(&'static self) -> MutexGuard<'static, ()> {
        self.0.get().lock().ignore_poison()
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "the test forks")]

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
        assert!(LOCK.0.get().try_lock().is_err());
        // SAFETY: the child only locks and ends.
        let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
            let free = LOCK.0.get().try_lock();
            let well = free.is_ok() && LOCK.0.get().try_lock().is_err();
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!well)) }
        };
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        assert!(LOCK.0.get().try_lock().is_err());
        go.send(()).unwrap();
        holder.join().unwrap();
        drop(LOCK.lock());
    }
}
