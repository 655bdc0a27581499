//! The parts of a cache that its users, its reaper and the monitor share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::budget::Budget;
use super::cache_registrar::CacheRegistrar;
use super::cache_state::CacheState;
use super::lease_counts::LeaseCounts;
use super::slots::Slots;
use super::state_lock::{StateGuard, StateLock};
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::monitor::MonitorHandle;
use crate::registrar::Registrar;
use hostbuf_os::fork_guard::ForkGuard;

/// The shared parts of a cache. A hit reads all but the lock, and writes none of them but the
/// calling thread's counts.
pub(super) struct CacheShared<R: Registrar> {
    pub(super) registrar: CacheRegistrar<R>,
    pub(super) slots: Slots<R::Handle>,
    pub(super) counts: LeaseCounts<R::Key>,
    /// The number of threads that wait for leases to end.
    pub(super) waiters: AtomicUsize,
    pub(super) monitor: Option<MonitorHandle>,
    pub(super) fork_guard: ForkGuard,
    /// True when the reaper has to stop.
    pub(super) closing: AtomicBool,
    pub(super) state: StateLock,
}

impl<R: Registrar> CacheShared<R> {
    /// Makes an empty cache. Nothing else is allocated afterwards, except for the counts and hints
    /// of each thread.
    ///
    /// # Errors
    /// [`Error::Os`] if there is no memory; [`Error::Invalid`] for invalid properties of the
    /// registrar.
    pub(super) fn new(
        registrar: Arc<R>,
        budget: Budget,
        monitor: Option<MonitorHandle>,
    ) -> Result<CacheShared<R>> {
        let no_memory = || Error::os("allocating the table of a registration cache");
        Ok(CacheShared {
            registrar: CacheRegistrar::new(registrar)?,
            slots: Slots::new(budget.registrations).map_err(no_memory())?,
            counts: LeaseCounts::new(budget.registrations).map_err(no_memory())?,
            waiters: AtomicUsize::new(0),
            monitor,
            fork_guard: ForkGuard::current(),
            closing: AtomicBool::new(false),
            state: StateLock::new(CacheState::new(budget)),
        })
    }

    /// Takes the cache's lock.
    pub(super) fn lock(&self) -> StateGuard<'_> {
        self.state.lock()
    }

    /// Returns the statistics. They are zero in a forked child, where another thread of the parent
    /// may hold the lock.
    pub(super) fn stats(&self) -> Stats {
        if !self.fork_guard.is_current() {
            return Stats::default();
        }
        self.lock().report(&self.counts)
    }
}
