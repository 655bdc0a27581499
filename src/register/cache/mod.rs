//! A cache of registrations: what is sent again and again is registered once.
//!
//! ```text
//!   get ──> front, table ──> count a lease ──> still live? ──> (foreign: has the address space changed?) ──> Lease
//!            │ nothing covers it                                   no lock, and no shared line written
//!            v
//!   lock: in progress already? wait for it ── room in the budget? else end another ── reserve
//!   no lock: watch the memory, register
//!   lock: changed meanwhile? end it and begin again ── else into the table
//! ```
//!
//! The lock is never held across a system call that changes the address space, nor while memory is allocated or freed: the
//! monitor takes it while another thread may be inside `free`.

mod batch;
mod budget;
mod ending;
mod growth;
mod guesses;
mod inner;
#[cfg(all(test, loom))]
mod interleavings;
mod lease;
mod miss;
mod policy;
mod reaper;
mod slot;
mod stats;
mod sync;
mod table;
mod words;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use budget::Budget;
pub use lease::Lease;
pub use stats::Stats;

use crate::buffer::owned;
use crate::error::Result;
use crate::register::monitor::{Monitor, Watcher};
use crate::register::registrar::Registrar;
use crate::span::{Access, Span};
use inner::Inner;
use miss::Wait;
use reaper::Reaper;

/// Registrations of one device, kept and found again by address. See the [module](crate::register) for what it promises.
///
/// Threads share it by reference. When it is dropped every registration ends.
///
/// A registrar must not call the cache that it serves from within [`register`](Registrar::register) or
/// [`deregister`](Registrar::deregister): it may wait for itself.
pub struct RegistrationCache<R: Registrar> {
    inner: Arc<Inner<R>>,
    reaper: Option<Reaper>,
}

impl<R: Registrar> RegistrationCache<R> {
    /// A cache over `registrar` with a hard limit.
    ///
    /// With [`Monitor::Strict`] foreign memory is watched by the process's one monitor, which is started, and has to prove
    /// itself, with the first such cache. Where it cannot, foreign memory is registered for its leases only, and a warning
    /// says why.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a budget without room, and when 256 caches with the strict monitor are alive;
    /// [`Error::Os`](crate::Error::Os) when there is no memory or no thread to be had.
    pub fn new(registrar: Arc<R>, budget: Budget, monitor: Monitor) -> Result<RegistrationCache<R>> {
        let budget = budget.check()?;
        let inner = Arc::new(Inner::new(registrar, budget, monitor.watch())?);
        let registrations: Arc<dyn owned::Registrations> = inner.clone();
        owned::tell(Arc::downgrade(&registrations));
        let reaper = Reaper::start(inner.clone())?;
        // From here on dropping it undoes all.
        let cache = RegistrationCache { inner, reaper: Some(reaper) };
        if let Some(watch) = &cache.inner.watch {
            let watcher: Arc<dyn Watcher> = cache.inner.clone();
            watch.subscribe(watcher)?;
        }
        Ok(cache)
    }

    /// A cache as the environment says: [`Budget::from_environment`] and [`Monitor::from_environment`].
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid).
    pub fn from_environment(registrar: Arc<R>) -> Result<RegistrationCache<R>> {
        RegistrationCache::new(registrar, Budget::from_environment()?, Monitor::from_environment()?)
    }

    /// A lease of a registration that covers `length` bytes from `start` with at least `access`.
    ///
    /// Waits for deregistrations, and for another thread's registration of the same range; not for leases. On a device that
    /// knows no overlapping registrations it also waits, for a second at most, where memory that is leased and changes all the
    /// time may be found to be what is asked for.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) when the rest of the budget is leased, or the request is above all of it;
    /// [`Error::Registration`](crate::Error::Registration) when the device refuses;
    /// [`Error::Invalid`](crate::Error::Invalid) for no range; [`Error::Forked`](crate::Error::Forked) in a child of the process
    /// that made the cache.
    #[inline(always)]
    pub fn get(&self, start: *const u8, length: usize, access: Access) -> Result<Lease<'_, R>> {
        self.inner.get(start, length, access, Wait::Progress)
    }

    /// The same if nothing has to be registered, and nobody waited for: nothing also while memory of this program is changing, of
    /// which the monitor has not heard yet.
    #[inline(always)]
    pub fn try_get(&self, start: *const u8, length: usize, access: Access) -> Option<Lease<'_, R>> {
        let span = Span::new(start as usize, length).ok()?;
        self.inner.hit_at_once(span, access)
    }

    /// The same as [`get`](RegistrationCache::get), and waits for leases too, first come first served among those who wait here;
    /// whoever calls `get` meanwhile may come before them. The time is for waiting: where the monitor's thread gets no core, watching
    /// foreign memory may take some 40 ms more. [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    /// As [`get`](RegistrationCache::get); [`Error::Budget`](crate::Error::Budget) when the time is over.
    pub fn get_timeout(
        &self,
        start: *const u8,
        length: usize,
        access: Access,
        timeout: Duration,
    ) -> Result<Lease<'_, R>> {
        let until = Instant::now() + timeout.min(Duration::from_secs(1 << 30));
        self.inner.get(start, length, access, Wait::Leases(until))
    }

    /// Leases of several ranges, all or none. Whether the address space has changed is asked once for all of them.
    ///
    /// # Errors
    /// As [`get`](RegistrationCache::get).
    pub fn get_many(&self, spans: &[Span], access: Access) -> Result<Vec<Lease<'_, R>>> {
        let mut leases = Vec::with_capacity(spans.len());
        self.get_many_into(spans, access, &mut leases)?;
        Ok(leases)
    }

    /// The same, behind what `leases` has already, so that a vector can be used again. After an error it is as before.
    ///
    /// # Errors
    /// As [`get`](RegistrationCache::get).
    pub fn get_many_into<'c>(
        &'c self,
        spans: &[Span],
        access: Access,
        leases: &mut Vec<Lease<'c, R>>,
    ) -> Result<()> {
        self.inner.get_many(spans, access, leases)
    }

    /// Registers `length` bytes from `start` unless that is done, and keeps the registration: it is not ended to make room for
    /// another, and requests inside are hits from then on, until the memory changes, [`invalidate`](Self::invalidate) says
    /// so, or the cache goes. For a [`HostBuffer`](crate::HostBuffer) that is sent from all the time, and for what else is
    /// to be registered once. It counts in the budget.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hostbuf::{HostBuffer, Options, Pages, job::Solo, register::*};
    /// # let cache = RegistrationCache::new(Arc::new(Mlock::new()), Budget { regions: 4, bytes: 1 << 20 }, Monitor::Strict)?;
    /// let buffer = HostBuffer::allocate(&Solo, Options::new(64 << 10).pages(Pages::Small))?;
    /// cache.keep(buffer.as_ptr().as_ptr(), buffer.len(), Access::READ)?;
    /// let part = cache.get(buffer.as_ptr().as_ptr().wrapping_add(100), 1000, Access::READ)?;
    /// assert_eq!(part.span().len(), buffer.len());
    /// assert_eq!(cache.stats().misses, 1);
    /// # Ok::<(), hostbuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Error::Registration`](crate::Error::Registration) for memory that is registered for its leases only.
    pub fn keep(&self, start: *const u8, length: usize, access: Access) -> Result<()> {
        self.inner.keep(Span::new(start as usize, length)?, access)
    }

    /// The memory in `span` has changed or is about to: no lease taken afterwards is of a registration made before. What is
    /// leased stays registered until its last lease ends. Call it before the pages change, where nobody else says so.
    ///
    /// It returns when every registration of `span` that is being ended has ended.
    ///
    /// # Errors
    /// What the device answered to the first deregistration that failed; [`Error::Forked`](crate::Error::Forked) in a
    /// child of the process that made the cache, whose registrations are not the child's to end.
    pub fn invalidate(&self, span: Span) -> Result<()> {
        if !self.inner.lineage.is_here() {
            return Err(crate::Error::Forked);
        }
        self.inner.forget(span, |stats| &mut stats.invalidated);
        let result = self.inner.end_stale();
        // What is leased goes with its last lease, or soon afterwards by the reaper.
        self.inner.wake_reaper();
        // What others are ending already has ended too when this returns.
        self.inner.wait_for_endings(span);
        result
    }

    /// Invalidates everything.
    ///
    /// # Errors
    /// As [`invalidate`](RegistrationCache::invalidate).
    pub fn flush(&self) -> Result<()> {
        self.invalidate(Span::new(1, usize::MAX - 1)?)
    }

    /// What it has done so far. In a child of the process that made it, nothing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// The registrar.
    #[must_use]
    pub fn registrar(&self) -> &Arc<R> {
        &self.inner.registrar
    }

    /// The limit.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.inner.budget
    }
}

impl<R: Registrar> Drop for RegistrationCache<R> {
    fn drop(&mut self) {
        if !self.inner.lineage.is_here() {
            // The reaper and the registrations are the parent's.
            std::mem::forget(self.reaper.take());
            return;
        }
        if let Some(watch) = &self.inner.watch {
            watch.unsubscribe(&*self.inner);
        }
        self.inner.closing.store(true, Ordering::Relaxed);
        drop(self.reaper.take());
        // No lease borrows from it any more; one that was forgotten keeps its registration, and its memory.
        let all = Span::new(1, usize::MAX - 1).expect("a range");
        self.inner.forget(all, |stats| &mut stats.invalidated);
        if let Err(error) = self.inner.end_stale() {
            tracing::error!(%error, "a registration of the cache could not be ended");
        }
        self.inner.wait_for_endings(all);
        self.inner.keep_forgotten();
    }
}

impl<R: Registrar> fmt::Debug for RegistrationCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.inner.registrar.name();
        f.debug_struct("RegistrationCache").field("device", &name).field("stats", &self.stats()).finish()
    }
}
