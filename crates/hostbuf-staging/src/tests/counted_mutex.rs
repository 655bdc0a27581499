//! Counts the locks that threads take which a test names.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{LockResult, Mutex, MutexGuard};

thread_local! {
    /// True in a thread whose locks are counted.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// The number of locks that all threads that are counted have taken, by the source file of the
/// call.
static LOCKS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// The standard library's mutex, with a count. A wait for a condition counts once, before it.
#[derive(Debug, Default)]
pub(crate) struct CountedMutex<T>(Mutex<T>);

impl<T> CountedMutex<T> {
    pub(crate) const fn new(value: T) -> CountedMutex<T> {
        CountedMutex(Mutex::new(value))
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // A thread that ends has no variables any more.
        if IS_COUNTED.try_with(Cell::get).unwrap_or(false) {
            *LOCKS.lock().expect("no panic").entry(Location::caller().file()).or_default() += 1;
        }
        self.0.lock()
    }
}

/// Counts the locks of the calling thread from now on.
pub(super) fn count_this_thread() {
    IS_COUNTED.set(true);
}

/// Returns the number of locks that were taken, by the names of the source files.
pub(super) fn locks() -> BTreeMap<&'static str, u64> {
    LOCKS.lock().expect("no panic").clone()
}
