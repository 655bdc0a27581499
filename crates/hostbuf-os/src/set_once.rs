//! A value that is set once.

#![allow(unsafe_code, reason = "shares a value between threads by its address")]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is set once; the first one counts. Unlike in a
/// [`OnceLock`](std::sync::OnceLock), no thread ever waits for another one here, so a forked child
/// does not wait for a thread of its parent.
pub struct SetOnce<T> {
    set: AtomicPtr<T>,
    value: PhantomData<T>,
}

impl<T> SetOnce<T> {
    /// Makes no value yet.
    #[must_use]
    pub const fn new() -> SetOnce<T> {
        SetOnce { set: AtomicPtr::new(null_mut()), value: PhantomData }
    }

    /// Returns the value, if there is one.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: null, or from `set`. It is freed by `drop` only.
        unsafe { self.set.load(Ordering::Acquire).as_ref() }
    }
}

impl<T> Default for SetOnce<T> {
    fn default() -> SetOnce<T> {
        SetOnce::new()
    }
}

impl<T: Send + Sync> SetOnce<T> {
    /// Sets the value, unless it is set. Returns the one that is set.
    pub fn set(&self, value: T) -> &T {
        if let Some(known) = self.get() {
            return known;
        }
        let own = Box::into_raw(Box::new(value));
        match self.set.compare_exchange(null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: from into_raw() above, and freed by `drop` only.
            Ok(_) => unsafe { &*own },
            Err(known) => {
                // SAFETY: from into_raw() above, and nobody else knows it.
                drop(unsafe { Box::from_raw(own) });
                // SAFETY: not null, from another call, and freed by `drop` only.
                unsafe { &*known }
            }
        }
    }
}

impl<T> Drop for SetOnce<T> {
    fn drop(&mut self) {
        let set = *self.set.get_mut();
        if !set.is_null() {
            // SAFETY: from `set`, and nobody refers to it any more.
            drop(unsafe { Box::from_raw(set) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for SetOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SetOnce").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn the_first_value_counts() {
        let kept = Arc::new(0);
        let value: SetOnce<(usize, Arc<i32>)> = SetOnce::new();
        assert!(value.get().is_none());
        let (threads, barrier) = (8, Barrier::new(8));
        let set = |number| {
            barrier.wait();
            value.set((number, kept.clone())).0
        };
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..threads).map(|number| scope.spawn(move || set(number))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|number| *number == value.get().unwrap().0), "{seen:?}");
        assert_eq!(Arc::strong_count(&kept), 2, "the others were dropped");
        drop(value);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
