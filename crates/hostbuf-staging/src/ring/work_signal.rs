//! The sleep of threads that have nothing to do.

use std::sync::Condvar;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use hostbuf_os::poison::IgnorePoison;

use crate::sync::Mutex;

/// The sleep of threads that have nothing to do (an event count). While no thread sleeps, a
/// notification takes no lock and makes no system call.
#[derive(Debug, Default)]
pub(super) struct WorkSignal {
    /// The number of notifications.
    epoch: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    notified: Condvar,
}

impl WorkSignal {
    /// Returns the present epoch. A thread asks for it, looks for work, and sleeps if there is
    /// none.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// States that there may be work.
    pub(super) fn notify(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        // Either this thread sees the sleeper, or the sleeper sees the epoch.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().ignore_poison());
            self.notified.notify_all();
        }
    }

    /// Sleeps until there has been a notification since `epoch`, at most for `time`.
    pub(super) fn wait_at_most(&self, epoch: u64, time: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let lock = self.lock.lock().ignore_poison();
        let is_same = |_: &mut ()| self.epoch() == epoch;
        drop(self.notified.wait_timeout_while(lock, time, is_same).ignore_poison());
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until there has been a notification since `epoch`.
    pub(super) fn wait(&self, epoch: u64) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut lock = self.lock.lock().ignore_poison();
        while self.epoch() == epoch {
            lock = self.notified.wait(lock).ignore_poison();
        }
        drop(lock);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
