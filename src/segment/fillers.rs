//! The threads of this process that fill buffers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;

use hostbuf_os::poison::IgnorePoison;

/// The buffers that threads of this process fill. The kernel's record lock excludes other
/// processes, but not other threads.
#[derive(Debug, Default)]
pub(crate) struct Fillers(Mutex<BTreeMap<usize, ThreadId>>);

/// The result of a thread's claim to fill a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The thread may fill the buffer, until [`Fillers::release`].
    Granted,
    /// The thread itself is already filling the buffer.
    Own,
    /// Another thread is filling the buffer.
    Other,
}

impl Fillers {
    fn table(&self) -> MutexGuard<'_, BTreeMap<usize, ThreadId>> {
        self.0.lock().ignore_poison()
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
