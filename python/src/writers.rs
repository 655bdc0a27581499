//! Who could still write into a buffer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hostbuf::HostBuffer;

/// How many views of one buffer's memory there are in this process by which somebody can write: a
/// freeze would make such a write end the process. While one is under way no more come.
#[derive(Default)]
pub struct Writers(Mutex<State>);

#[derive(Default)]
struct State {
    views: usize,
    freezing: usize,
}

impl Writers {
    /// Those of the buffer at this address, which all who have it share.
    pub fn of(buffer: &HostBuffer) -> Arc<Writers> {
        static ALL: Mutex<BTreeMap<usize, Weak<Writers>>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, one| one.strong_count() > 0);
        let place = all.entry(buffer.as_ptr().as_ptr() as usize).or_default();
        place.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Writers::default());
            *place = Arc::downgrade(&made);
            made
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, if that may be now.
    pub fn more(&self) -> bool {
        let mut state = self.state();
        let may = state.freezing == 0;
        state.views += usize::from(may);
        may
    }

    pub fn less(&self) {
        self.state().views -= 1;
    }

    pub fn count(&self) -> usize {
        self.state().views
    }

    /// Lets no more come until the result is dropped.
    ///
    /// # Errors
    /// How many there are.
    pub fn freeze(self: Arc<Writers>) -> Result<Freezing, usize> {
        let mut state = self.state();
        match state.views {
            0 => state.freezing += 1,
            views => return Err(views),
        }
        drop(state);
        Ok(Freezing(self))
    }
}

/// A freeze that is under way.
pub struct Freezing(Arc<Writers>);

impl Drop for Freezing {
    fn drop(&mut self) {
        self.0.state().freezing -= 1;
    }
}
