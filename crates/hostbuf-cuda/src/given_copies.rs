//! The number of deferred copies that streams were given and have not done.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf_os::poison::IgnorePoison;

/// The number of copies that streams were given and have not done. The end of each object counts as
/// one more.
static GIVEN: Mutex<usize> = Mutex::new(0);
/// The limit of [`GIVEN`]. A copy takes three entries of a queue of the driver, which has about a
/// thousand. A call that adds to a full queue waits in the driver, with a lock that other threads
/// need for their calls.
const MOST_GIVEN: usize = 200;

/// The share of one object in the number.
#[derive(Debug, Default)]
pub(crate) struct GivenCopies {
    /// Guarded by the lock of [`GIVEN`].
    counted: AtomicUsize,
}

impl GivenCopies {
    /// Returns the number of further copies that a stream may be given, of `left`. `on_their_way`
    /// were given and are not done. All of them count from now on, and the end.
    ///
    /// A copy that is done leaves its room to the next one of the same object: the copies of other
    /// objects may be behind that in a queue, and must not take its room.
    pub(crate) fn take_room(&self, on_their_way: usize, left: usize) -> usize {
        let mut all = GIVEN.lock().ignore_poison();
        let before = self.counted.load(Ordering::Relaxed);
        let others = *all - before;
        let taken = left.min(MOST_GIVEN.saturating_sub(others + on_their_way + 1));
        let counted = if before == 0 && taken == 0 { 0 } else { on_their_way + taken + 1 };
        self.counted.store(counted, Ordering::Relaxed);
        *all = others + counted;
        taken
    }

    /// States that no copy is on its way any more.
    pub(crate) fn give_back(&self) {
        *GIVEN.lock().ignore_poison() -= self.counted.swap(0, Ordering::Relaxed);
    }
}
