//! The cache's lock, and the conditions that threads wait for with it.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use super::cache_state::CacheState;
use super::sync::{Condvar, Mutex, MutexGuard};
use super::wait::sleep_time;

/// The state under the cache's lock, in separate cache lines, since every hit reads the rest of the
/// cache.
///
/// The lock is never held across a system call that changes the address space, nor while memory is
/// allocated or freed: the monitor takes it while another thread may be inside `free`.
#[repr(align(128))]
pub(super) struct StateLock {
    guarded: Mutex<LockedState>,
    /// The signal that a waiting request may proceed.
    changed: Condvar,
    /// The signal that the reaper has work.
    stale: Condvar,
}

struct LockedState {
    state: CacheState,
    /// The number of threads in [`StateLock::wait`]: a wake-up costs a system call even if no
    /// thread waits.
    sleepers: usize,
    /// True if the reaper sleeps until it is woken; otherwise it looks again soon.
    reaper_sleeps: bool,
}

/// The cache's lock, held by the calling thread.
pub(super) struct StateGuard<'a>(MutexGuard<'a, LockedState>);

impl Deref for StateGuard<'_> {
    type Target = CacheState;

    #[inline]
    fn deref(&self) -> &CacheState {
        &self.0.state
    }
}

impl DerefMut for StateGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut CacheState {
        &mut self.0.state
    }
}

impl StateLock {
    /// Makes the lock of a cache.
    pub(super) fn new(state: CacheState) -> StateLock {
        let guarded = Mutex::new(LockedState { state, sleepers: 0, reaper_sleeps: false });
        StateLock { guarded, changed: Condvar::new(), stale: Condvar::new() }
    }

    /// Takes the lock.
    #[inline]
    pub(super) fn lock(&self) -> StateGuard<'_> {
        StateGuard(self.guarded.lock().ignore_poison())
    }

    /// Releases the lock after a change that others may wait for.
    #[inline]
    pub(super) fn unlock(&self, state: StateGuard<'_>) {
        let wake = state.0.sleepers > 0;
        drop(state);
        if wake {
            self.wake_requests();
        }
    }

    /// Wakes all waiting requests.
    #[inline]
    pub(super) fn wake_requests(&self) {
        self.changed.notify_all();
    }

    /// Waits for a change, at most until `until`. It returns after a short time in any case, so
    /// callers check again.
    pub(super) fn wait<'a>(&'a self, mut state: StateGuard<'a>, until: Option<Instant>) -> StateGuard<'a> {
        state.0.sleepers += 1;
        let mut state = self.wait_unannounced(state, sleep_time(until)).0;
        state.0.sleepers -= 1;
        state
    }

    /// Waits for a change for at most `time`, without being counted as a sleeper. Returns whether
    /// the time is over.
    pub(super) fn wait_unannounced<'a>(
        &'a self,
        state: StateGuard<'a>,
        time: Duration,
    ) -> (StateGuard<'a>, bool) {
        let (guard, waited) = self.changed.wait_timeout(state.0, time).ignore_poison();
        (StateGuard(guard), waited.timed_out())
    }

    /// Wakes the reaper if something is stale and the reaper would not look soon.
    #[inline]
    pub(super) fn wake_reaper(&self) {
        let mut state = self.lock();
        let wake = !state.lists.stale().is_empty() && std::mem::take(&mut state.0.reaper_sleeps);
        drop(state);
        if wake {
            self.stale.notify_one();
        }
    }

    /// Wakes the reaper in any case.
    #[inline]
    pub(super) fn stop_reaper(&self) {
        self.stale.notify_all();
    }

    /// Lets the reaper sleep for at most `time`. Returns whether the time is over. If
    /// `until_woken`, only stale registrations or [`stop_reaper`](StateLock::stop_reaper) wake it;
    /// otherwise it is not woken.
    #[inline]
    pub(super) fn sleep_as_reaper(
        &self,
        mut state: StateGuard<'_>,
        time: Duration,
        until_woken: bool,
    ) -> bool {
        state.0.reaper_sleeps = until_woken;
        let (guard, waited) = self.stale.wait_timeout(state.0, time).ignore_poison();
        drop(guard);
        waited.timed_out()
    }
}
