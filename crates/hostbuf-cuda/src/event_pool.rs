//! Events between two uses.

use std::mem::take;
use std::sync::Mutex;

use hostbuf_os::poison::IgnorePoison;

/// The largest number of events that a context keeps.
const KEPT: usize = 256;

/// The events of a context that wait for their next use, by their handles. They record no time, and
/// end with the context.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    free: Mutex<Vec<usize>>,
}

impl EventPool {
    /// Takes an event, which has recorded work of its last use.
    pub(crate) fn take(&self) -> Option<usize> {
        self.free.lock().ignore_poison().pop()
    }

    /// Adds an event. Returns `false` if there are enough, and the caller keeps it.
    pub(crate) fn put(&self, event: usize) -> bool {
        let mut free = self.free.lock().ignore_poison();
        let has_room = free.len() < KEPT;
        if has_room {
            free.push(event);
        }
        has_room
    }

    /// Returns whether no event waits for its next use.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.lock().ignore_poison().is_empty()
    }

    /// Takes all events.
    pub(crate) fn take_all(&self) -> Vec<usize> {
        take(&mut *self.free.lock().ignore_poison())
    }
}
