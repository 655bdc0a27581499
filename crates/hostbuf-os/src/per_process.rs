//! A value of which each process has its own.

#![allow(unsafe_code, reason = "shares a value between threads that a child replaces")]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork_guard::ForkGuard;

/// A value of which each process has its own: a forked child does not find the value of its parent,
/// but a new one. It suits locks and what they guard: a thread of the parent may hold the lock at
/// the fork, and what it was changing stays half changed in the child.
///
/// The child never drops the parent's value.
pub struct PerProcess<T> {
    own: AtomicPtr<OwnedValue<T>>,
    value: PhantomData<T>,
}

/// The value of one process, and its proof that it is not a parent's.
struct OwnedValue<T> {
    process: ForkGuard,
    value: T,
}

impl<T> PerProcess<T> {
    /// Makes no value yet.
    #[must_use]
    pub const fn new() -> PerProcess<T> {
        PerProcess { own: AtomicPtr::new(null_mut()), value: PhantomData }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// Returns the value of this process, which the first call makes.
    pub fn get(&self) -> &T {
        let mut known = self.own.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or from below. It is freed by `drop` only.
            if let Some(known) = unsafe { known.as_ref() }.filter(|known| known.process.is_current()) {
                return &known.value;
            }
            let own = OwnedValue { process: ForkGuard::current(), value: T::default() };
            let own = Box::into_raw(Box::new(own));
            match self.own.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as above, since it has been stored.
                Ok(_) => return unsafe { &(*own).value },
                Err(other) => {
                    // SAFETY: from into_raw() above, and nobody else knows it.
                    drop(unsafe { Box::from_raw(own) });
                    known = other;
                }
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let own = *self.own.get_mut();
        // SAFETY: null, or from `get`.
        if unsafe { own.as_ref() }.is_some_and(|own| own.process.is_current()) {
            // SAFETY: as above, and nobody refers to it any more.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;
    use crate::poison::IgnorePoison;

    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    #[derive(Default)]
    struct Counted(Mutex<u32>);

    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether `work` returns true in a forked child.
    fn is_well_in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only locks and ends.
        let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
            let status = i32::from(!work());
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(status) }
        };
        matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0)))
    }

    #[test]
    fn a_child_has_a_value_of_its_own() {
        let shared: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut held = shared.get().lock().ignore_poison();
        *held = 1;
        assert!(is_well_in_child(|| {
            let is_new = shared.get().try_lock().is_ok_and(|mut own| std::mem::replace(&mut *own, 2) == 0);
            is_new && shared.get().try_lock().is_ok_and(|own| *own == 2)
        }));
        assert_eq!(*held, 1);
    }

    #[test]
    fn a_child_drops_its_own_value_only() {
        let shared: RefCell<Option<PerProcess<Counted>>> = RefCell::new(Some(PerProcess::new()));
        let set = || *shared.borrow().as_ref().unwrap().get().0.lock().ignore_poison() = 1;
        let drops = || {
            shared.replace(None);
            DROPPED.load(Ordering::Relaxed)
        };
        set();
        assert!(is_well_in_child(|| drops() == 0));
        assert!(is_well_in_child(|| {
            set();
            drops() == 1
        }));
        assert_eq!(drops(), 1);
    }
}
