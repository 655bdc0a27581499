//! The atomics, locks and cells of the paths without a lock: the standard library's, or loom's
//! under `--cfg loom`.
//!
//! loom explores every interleaving of a few threads, with a bounded number of preemptions, and
//! every value that the memory model allows a load to return. It does not model the single order of
//! SeqCst accesses: it treats them as AcqRel, and so finds executions in which a lease and an
//! eviction miss each other, which no machine has. It does model SeqCst fences. Therefore a SeqCst
//! store is followed by a fence here, as on x86, and a SeqCst load is not. The fence is slightly
//! stronger than the language requires, since weaker accesses cannot pass it. The models that must
//! hold without it run without fences.
//!
//! A thread's hints do not use these types: no other thread reads them, and any hint may be wrong.

#[cfg(not(all(test, loom)))]
pub(super) use hostbuf_os::array::Array as CounterArray;
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(all(test, loom)))]
pub(super) use std::{hint::spin_loop, thread_local};

#[cfg(all(test, loom))]
pub(super) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, fence},
    sync::{Condvar, Mutex, MutexGuard},
};
#[cfg(all(test, loom))]
pub(super) use modelled::thread_local;
#[cfg(all(test, loom))]
pub(super) use modelled::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, CounterArray, without_fences};

/// A cell that one thread writes while no other thread accesses it. loom reports violations.
#[derive(Debug)]
pub(super) struct HandleCell<T> {
    #[cfg(not(all(test, loom)))]
    inner: std::cell::UnsafeCell<T>,
    #[cfg(all(test, loom))]
    inner: loom::cell::UnsafeCell<T>,
}

impl<T> HandleCell<T> {
    #[cfg(not(all(test, loom)))]
    pub(super) fn new(value: T) -> HandleCell<T> {
        HandleCell { inner: std::cell::UnsafeCell::new(value) }
    }

    #[cfg(not(all(test, loom)))]
    #[inline]
    pub(super) fn with<U>(&self, look: impl FnOnce(*const T) -> U) -> U {
        look(self.inner.get())
    }

    #[cfg(not(all(test, loom)))]
    #[inline]
    pub(super) fn with_mut<U>(&self, change: impl FnOnce(*mut T) -> U) -> U {
        change(self.inner.get())
    }

    #[cfg(all(test, loom))]
    pub(super) fn new(value: T) -> HandleCell<T> {
        HandleCell { inner: loom::cell::UnsafeCell::new(value) }
    }

    #[cfg(all(test, loom))]
    pub(super) fn with<U>(&self, look: impl FnOnce(*const T) -> U) -> U {
        self.inner.with(look)
    }

    #[cfg(all(test, loom))]
    pub(super) fn with_mut<U>(&self, change: impl FnOnce(*mut T) -> U) -> U {
        self.inner.with_mut(change)
    }
}

#[cfg(all(test, loom))]
mod modelled {
    use std::cell::Cell;
    use std::io;
    use std::ops::Deref;
    use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Release, SeqCst};

    use loom::sync::atomic::{self as checked, fence};

    std::thread_local! {
        // All threads of a model run in one thread of the operating system.
        static FENCES: Cell<bool> = const { Cell::new(true) };
    }

    /// Runs a model in which SeqCst is no more than AcqRel.
    pub(in crate::cache) fn without_fences(run: impl FnOnce()) {
        FENCES.set(false);
        run();
        FENCES.set(true);
    }

    fn fenced(order: Ordering) {
        if order == SeqCst && FENCES.get() {
            fence(SeqCst);
        }
    }

    fn weaker(order: Ordering, weaker: Ordering) -> Ordering {
        if order == SeqCst { weaker } else { order }
    }

    /// Declares thread-locals. loom's macro does not support `const`.
    macro_rules! locals {
        ($($(#[$about:meta])* static $name:ident: $of:ty = const { $first:expr };)*) => {
            $(loom::thread_local! { $(#[$about])* static $name: $of = $first; })*
        };
    }
    pub(in crate::cache) use locals as thread_local;

    /// A replacement for [`hostbuf_os::array::Array`], since zero bytes are not a valid atomic of
    /// loom.
    pub(in crate::cache) struct CounterArray<T>(Box<[T]>);

    impl<T: Default> CounterArray<T> {
        pub(in crate::cache) fn zeroed(count: usize) -> io::Result<CounterArray<T>> {
            Ok(CounterArray((0..count).map(|_| T::default()).collect()))
        }

        /// Does nothing, since no model forks.
        pub(in crate::cache) fn zero_in_children(self) -> CounterArray<T> {
            self
        }
    }

    impl<T> Deref for CounterArray<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty $(, $of:ident)?) => {
            #[derive(Debug)]
            pub(in crate::cache) struct $name $(<$of>)? (checked::$name $(<$of>)?);

            impl $(<$of>)? $name $(<$of>)? {
                pub(in crate::cache) fn new(value: $value) -> Self {
                    Self(checked::$name::new(value))
                }

                pub(in crate::cache) fn load(&self, order: Ordering) -> $value {
                    self.0.load(weaker(order, Acquire))
                }

                pub(in crate::cache) fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, weaker(order, Release));
                    fenced(order);
                }

                #[allow(dead_code, reason = "not every type of the cache uses it")]
                pub(in crate::cache) fn swap(&self, value: $value, order: Ordering) -> $value {
                    let before = self.0.swap(value, weaker(order, AcqRel));
                    fenced(order);
                    before
                }

                #[allow(dead_code, reason = "not every type of the cache uses it")]
                pub(in crate::cache) fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    let result = self.0.compare_exchange(old, new, weaker(order, AcqRel), failure);
                    fenced(order);
                    result
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
    atomic!(AtomicUsize, usize);
    atomic!(AtomicPtr, *mut T, T);

    impl AtomicU64 {
        pub(in crate::cache) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            let before = self.0.fetch_or(value, weaker(order, AcqRel));
            fenced(order);
            before
        }

        pub(in crate::cache) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            let before = self.0.fetch_and(value, weaker(order, AcqRel));
            fenced(order);
            before
        }
    }

    impl AtomicUsize {
        pub(in crate::cache) fn fetch_add(&self, value: usize, order: Ordering) -> usize {
            self.0.fetch_add(value, order)
        }
    }
}
