//! The number of deferred copies that were enqueued on streams and have not ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf_os::poison::IgnorePoison;

/// The number of copies that were enqueued on streams and have not ended. The end of each object
/// counts as one more.
static ENQUEUED: Mutex<usize> = Mutex::new(0);
/// The limit of [`ENQUEUED`]. A copy takes three entries of a queue of the driver, which has about
/// a thousand. A call that adds to a full queue waits in the driver, with a lock that other threads
/// need for their calls.
const MOST_ENQUEUED: usize = 200;

/// The share of one object in the number.
#[derive(Debug, Default)]
pub(crate) struct EnqueuedCopies {
    /// Guarded by the lock of [`ENQUEUED`].
    counted: AtomicUsize,
}

impl EnqueuedCopies {
    /// Returns how many of `left` further copies may be enqueued on a stream. `in_flight` copies
    /// were enqueued and have not ended. All of them count from now on, and so does the end.
    ///
    /// A copy that has ended leaves its room to the next one of the same object: the copies of
    /// other objects may come after that one in a queue, and must not take its room.
    pub(crate) fn take_room(&self, in_flight: usize, left: usize) -> usize {
        let mut all = ENQUEUED.lock().ignore_poison();
        let before = self.counted.load(Ordering::Relaxed);
        let others = *all - before;
        let taken = left.min(MOST_ENQUEUED.saturating_sub(others + in_flight + 1));
        let counted = if before == 0 && taken == 0 { 0 } else { in_flight + taken + 1 };
        self.counted.store(counted, Ordering::Relaxed);
        *all = others + counted;
        taken
    }

    /// States that no copy is in flight any more.
    pub(crate) fn give_back(&self) {
        *ENQUEUED.lock().ignore_poison() -= self.counted.swap(0, Ordering::Relaxed);
    }
}
