//! The threads of this process that fill buffers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The buffers that threads of this process fill. The kernel's record lock excludes other
/// processes, but not other threads.
#[derive(Debug, Default)]
pub(crate) struct Fillers(Mutex<BTreeMap<usize, ThreadId>>);

/// The answer to a thread that wants to fill a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// It may, until [`Fillers::release`].
    Granted,
    /// It fills the buffer already.
    Own,
    /// Another thread fills it.
    Other,
}

impl Fillers {
    fn table(&self) -> MutexGuard<'_, BTreeMap<usize, ThreadId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims buffer `index` for the calling thread.
    pub(crate) fn claim(&self, index: usize) -> Claim {
        let own = std::thread::current().id();
        match self.table().entry(index) {
            Entry::Occupied(filler) if *filler.get() == own => Claim::Own,
            Entry::Occupied(_) => Claim::Other,
            Entry::Vacant(free) => {
                free.insert(own);
                Claim::Granted
            }
        }
    }

    /// Ends the claim on buffer `index`.
    pub(crate) fn release(&self, index: usize) {
        self.table().remove(&index);
    }
}
