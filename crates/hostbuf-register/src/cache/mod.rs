//! A cache of registrations, so that memory that is sent repeatedly is registered once.
//!
//! ```text
//!   hit (no lock, no shared cache line written):
//!     hint or table of ranges ──> count a lease ──> is the slot unchanged?
//!         ──> (watched: any change?) ──> Lease
//!   miss:
//!     lock:    in progress already? wait ── room in the budget? otherwise evict ── reserve
//!     no lock: watch the memory, register
//!     lock:    has the memory changed meanwhile? deregister and begin again
//!              ── otherwise make it live
//! ```
//!
//! The parts own their data: `slots` (the registrations, and the table that finds them),
//! `lease_counts` with `hints` (of each thread), and under the lock `cache_state` (lists of slots,
//! use of the budget, eviction policy, waiting requests). `hit`, `miss`, `batch`, `keep` and
//! `deregister` are the operations.
//!
//! The lock is never held across a system call that changes the address space, nor while memory is
//! allocated or freed: the monitor takes it while another thread may be inside `free`. A miss calls
//! the device only with a `Reserved` slot, which it gets for releasing the lock.

mod batch;
mod budget;
mod cache_registrar;
mod cache_slot;
mod cache_state;
mod deregister;
mod eviction;
mod growth;
mod hints;
mod hit;
#[cfg(all(test, loom))]
mod interleavings;
mod keep;
mod lease;
mod lease_counts;
mod lease_end;
mod lease_totals;
mod miss;
mod observers;
mod origin;
mod publish;
mod range_table;
mod reaper;
mod refusal;
mod reserve;
mod shared;
mod slot;
mod slot_details;
mod slot_lists;
mod slots;
mod state_lock;
mod stats;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
mod usage;
mod wait;
mod wait_queue;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use budget::Budget;
pub use lease::Lease;
pub use stats::Stats;

use crate::error::Result;
use crate::monitor::{MonitorMode, Watcher};
use crate::own_ranges;
use crate::registrar::Registrar;
use crate::span::{Access, Span};
use reaper::Reaper;
use shared::CacheShared;
use wait::WaitMode;

/// A cache of the registrations of one device, found by address. The [crate](crate)
/// describes its guarantees.
///
/// Threads share it by reference. Dropping it ends every registration.
///
/// A registrar must not call the cache that it serves from within [`register`](Registrar::register)
/// or [`deregister`](Registrar::deregister), since the call could deadlock.
pub struct RegistrationCache<R: Registrar> {
    shared: Arc<CacheShared<R>>,
    budget: Budget,
    reaper: Option<Reaper>,
}

impl<R: Registrar> RegistrationCache<R> {
    /// Makes a cache over `registrar` with a hard limit.
    ///
    /// With [`MonitorMode::Strict`] the process's single monitor watches foreign memory. The first
    /// such cache starts it, and tests that it works. If it does not, foreign memory is registered
    /// for its leases only, and a warning gives the reason.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a budget without room, for invalid properties
    /// of the registrar, and if 256 caches with the strict monitor are alive;
    /// [`Error::Os`](crate::Error::Os) if the host has no memory or no thread left; with
    /// [`MonitorMode::Required`] also [`Error::OtherCopy`](crate::Error::OtherCopy) or
    /// [`Error::Unsupported`](crate::Error::Unsupported) if there is no monitor.
    pub fn new(registrar: Arc<R>, budget: Budget, monitor: MonitorMode) -> Result<RegistrationCache<R>> {
        let budget = budget.check()?;
        let shared = Arc::new(CacheShared::new(registrar, budget, monitor.watch()?)?);
        let registrations: Arc<dyn own_ranges::FreezeObserver> = shared.clone();
        own_ranges::observe(Arc::downgrade(&registrations));
        let reaper = Reaper::start(shared.clone())?;
        // From here on a drop of the cache undoes everything.
        let cache = RegistrationCache { shared, budget, reaper: Some(reaper) };
        if let Some(monitor) = &cache.shared.monitor {
            let watcher: Arc<dyn Watcher> = cache.shared.clone();
            monitor.subscribe(watcher)?;
        }
        Ok(cache)
    }

    /// Makes a cache with [`Budget::from_environment`] and [`MonitorMode::from_environment`].
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid).
    pub fn from_environment(registrar: Arc<R>) -> Result<RegistrationCache<R>> {
        RegistrationCache::new(registrar, Budget::from_environment()?, MonitorMode::from_environment()?)
    }

    /// Returns a lease of a registration that covers `length` bytes from `start` with at least
    /// `access`.
    ///
    /// It waits for deregistrations, and for another thread's registration of the same range, but
    /// not for leases. On a device without overlapping registrations it also waits, for at most one
    /// second, if a leased registration may be valid for the request but its memory changes without
    /// a pause.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) if the rest of the budget is leased, or if the
    /// request exceeds the whole budget; [`Error::Registration`](crate::Error::Registration) if the
    /// device refuses; [`Error::Invalid`](crate::Error::Invalid) if the range is invalid;
    /// [`Error::Forked`](crate::Error::Forked) in a child of the process that made the cache.
    #[inline(always)]
    pub fn get(&self, start: *const u8, length: usize, access: Access) -> Result<Lease<'_, R>> {
        self.get_waiting(start, length, access, WaitMode::Progress)
    }

    /// Returns a lease if that requires neither a registration nor a wait, else `None`. It also
    /// returns `None` while memory of this program is changing and the monitor has not applied the
    /// change.
    #[inline(always)]
    pub fn try_get(&self, start: *const u8, length: usize, access: Access) -> Option<Lease<'_, R>> {
        let span = Span::new(start as usize, length).ok()?;
        hit::hit_without_wait(&self.shared, span, access)
    }

    /// Returns a lease as [`get`](RegistrationCache::get) does, but also waits for other leases to
    /// end, for at most the given time; [`Duration::MAX`] waits for ever. Waiting requests are
    /// served in order, but concurrent calls of `get` may overtake them. If the monitor's thread
    /// gets no state, watching foreign memory may take about 40 ms more.
    ///
    /// # Errors
    /// As [`get`](RegistrationCache::get); [`Error::Budget`](crate::Error::Budget) after the given
    /// time.
    pub fn get_timeout(
        &self,
        start: *const u8,
        length: usize,
        access: Access,
        timeout: Duration,
    ) -> Result<Lease<'_, R>> {
        let until = Instant::now() + timeout.min(Duration::from_secs(1 << 30));
        self.get_waiting(start, length, access, WaitMode::Leases(until))
    }

    #[inline(always)]
    fn get_waiting(
        &self,
        start: *const u8,
        length: usize,
        access: Access,
        wait: WaitMode,
    ) -> Result<Lease<'_, R>> {
        let span = Span::new(start as usize, length)?;
        miss::get(&self.shared, span, access, wait)
    }

    /// Returns leases of several ranges, all or none. One check for changes of the address space
    /// serves all of them.
    ///
    /// # Errors
    /// As [`get`](RegistrationCache::get).
    pub fn get_many(&self, spans: &[Span], access: Access) -> Result<Vec<Lease<'_, R>>> {
        let mut leases = Vec::with_capacity(spans.len());
        self.get_many_into(spans, access, &mut leases)?;
        Ok(leases)
    }

    /// Appends leases of several ranges, all or none, to `leases`, so that a vector can be reused.
    /// After an error `leases` is unchanged.
    ///
    /// # Errors
    /// As [`get`](RegistrationCache::get).
    pub fn get_many_into<'c>(
        &'c self,
        spans: &[Span],
        access: Access,
        leases: &mut Vec<Lease<'c, R>>,
    ) -> Result<()> {
        batch::get_many(&self.shared, spans, access, leases)
    }

    /// Registers `length` bytes from `start`, unless they are registered, and exempts the
    /// registration from eviction. Requests inside it hit until the memory changes,
    /// [`invalidate`](Self::invalidate) ends the registration, or the cache is dropped. Use it for
    /// memory that is sent from all the time, such as a host buffer. It counts in the budget.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hostbuf_register::{Access, Budget, Mlock, MonitorMode, RegistrationCache};
    /// # let budget = Budget::new(4).bytes(1 << 20);
    /// let cache = RegistrationCache::new(Arc::new(Mlock::new()), budget, MonitorMode::Explicit)?;
    /// let table = vec![7u8; 64 << 10];
    /// cache.keep(table.as_ptr(), table.len(), Access::READ)?;
    /// let part = cache.get(table[100..].as_ptr(), 1000, Access::READ)?;
    /// assert_eq!(part.span().len(), table.len());
    /// assert_eq!(cache.stats().misses, 1);
    /// # Ok::<(), hostbuf_register::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Error::Registration`](crate::Error::Registration) for memory that
    /// is registered for its leases only.
    pub fn keep(&self, start: *const u8, length: usize, access: Access) -> Result<()> {
        keep::keep(&self.shared, Span::new(start as usize, length)?, access)
    }

    /// Invalidates all registrations of memory in `span`: no later lease uses a registration made
    /// before. Leased registrations end with their last lease. Call it before the pages change if
    /// the monitor does not see the change.
    ///
    /// It returns after every unleased registration of `span` has ended, except those that other
    /// threads are making at this time: their threads end them, possibly later.
    ///
    /// # Errors
    /// The device's error of the first failed deregistration, by this call or, in `span`, by
    /// another thread meanwhile; [`Error::Forked`](crate::Error::Forked) in a child of the process
    /// that made the cache.
    pub fn invalidate(&self, span: Span) -> Result<()> {
        if !self.shared.fork_guard.is_current() {
            return Err(crate::Error::Forked);
        }
        let leaked = self.shared.lock().stats.leaked;
        deregister::make_stale(&self.shared, span, |stats| &mut stats.invalidated);
        let result = deregister::deregister_stale(&self.shared);
        // A leased registration ends with its last lease, or soon afterwards by the reaper.
        self.shared.state.wake_reaper();
        // Another thread may be deregistering some of the range.
        deregister::wait_for_deregistrations(&self.shared, span);
        result.and_then(|()| deregister::check_leaks(&self.shared, span, leaked))
    }

    /// Invalidates everything.
    ///
    /// # Errors
    /// As [`invalidate`](RegistrationCache::invalidate).
    pub fn flush(&self) -> Result<()> {
        self.invalidate(Span::new(1, usize::MAX - 1)?)
    }

    /// Returns the statistics. They are zero in a child of the process that made the cache.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns the registrar.
    #[must_use]
    pub fn registrar(&self) -> &Arc<R> {
        self.shared.registrar.of_user()
    }

    /// Returns the limit.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }
}

impl<R: Registrar> Drop for RegistrationCache<R> {
    fn drop(&mut self) {
        if !self.shared.fork_guard.is_current() {
            // The reaper and the registrations belong to the parent.
            std::mem::forget(self.reaper.take());
            return;
        }
        if let Some(monitor) = &self.shared.monitor {
            monitor.unsubscribe(&*self.shared);
        }
        self.shared.closing.store(true, Ordering::Relaxed);
        drop(self.reaper.take());
        // No lease borrows from the cache any more. One that was forgotten keeps its registration,
        // and its memory.
        let all = Span::new(1, usize::MAX - 1).expect("a range");
        deregister::make_stale(&self.shared, all, |stats| &mut stats.invalidated);
        if let Err(error) = deregister::deregister_stale(&self.shared) {
            tracing::error!(%error, "a deregistration has failed");
        }
        deregister::wait_for_deregistrations(&self.shared, all);
        deregister::retain_forgotten_memory(&self.shared);
    }
}

impl<R: Registrar> fmt::Debug for RegistrationCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.shared.registrar.name();
        f.debug_struct("RegistrationCache").field("device", &name).field("stats", &self.stats()).finish()
    }
}
