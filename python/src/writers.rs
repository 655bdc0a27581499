//! Writable views of a buffer's memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use hostbuf::HostBuffer;
use hostbuf_os::poison::IgnorePoison;

/// The number of writable views of one buffer's memory in this process. After a freeze, a write
/// through such a view would kill the process. During a freeze no new writable view is made.
#[derive(Default)]
pub struct Writers(Mutex<WriterCounts>);

#[derive(Default)]
struct WriterCounts {
    views: usize,
    freezing: usize,
}

impl Writers {
    /// Returns the count for the buffer at this address, which all its handles share.
    pub fn of(buffer: &HostBuffer) -> Arc<Writers> {
        static ALL: Mutex<BTreeMap<usize, Weak<Writers>>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().ignore_poison();
        all.retain(|_, one| one.strong_count() > 0);
        let entry = all.entry(buffer.as_ptr().as_ptr() as usize).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Writers::default());
            *entry = Arc::downgrade(&made);
            made
        })
    }

    fn state(&self) -> MutexGuard<'_, WriterCounts> {
        self.0.lock().ignore_poison()
    }

    /// Counts one more writable view, unless a freeze is in progress. Returns whether it did.
    pub fn try_add(&self) -> bool {
        let mut state = self.state();
        let may = state.freezing == 0;
        state.views += usize::from(may);
        may
    }

    pub fn remove(&self) {
        self.state().views -= 1;
    }

    pub fn count(&self) -> usize {
        self.state().views
    }

    /// Prevents new writable views until the result is dropped.
    ///
    /// # Errors
    /// The number of writable views, if there are any.
    pub fn block(self: Arc<Writers>) -> Result<WritersBlocked, usize> {
        let mut state = self.state();
        match state.views {
            0 => state.freezing += 1,
            views => return Err(views),
        }
        drop(state);
        Ok(WritersBlocked(self))
    }
}

/// A guard that prevents new writable views during a freeze.
pub struct WritersBlocked(Arc<Writers>);

impl Drop for WritersBlocked {
    fn drop(&mut self) {
        self.0.state().freezing -= 1;
    }
}
