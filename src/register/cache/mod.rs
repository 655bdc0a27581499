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

#![allow(unsafe_code)]

mod budget;
mod policy;
mod reaper;
mod slot;
mod stats;
mod table;
mod words;

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use budget::Budget;
pub use stats::Stats;

use crate::buffer::owned;
use crate::error::{Error, Result};
use crate::os::lineage::Lineage;
use crate::os::memory;
use crate::register::monitor::{Monitor, Unwatched, Watch, Watcher};
use crate::register::registrar::{Overlap, Registrar};
use crate::span::{Access, Span};
use policy::{Policy, Short};
use reaper::Reaper;
use slot::{Content, Slot, State};
use table::{Found, Table};
use words::Words;

/// How long a thread that waits for a lease to end sleeps at most before it looks again: whoever drops a lease looks for
/// waiters without a fence, and may miss one.
const LOOK: Duration = Duration::from_millis(2);
/// How often a registration is made again whose memory changed meanwhile.
const RETRIES: u32 = 16;
const MOST_WAITING: usize = 4096;

/// Registrations of one device, kept and found again by address. See the [module](crate::register) for what it promises.
///
/// Threads share it by reference. When it is dropped every registration ends.
pub struct RegistrationCache<R: Registrar> {
    inner: Arc<Inner<R>>,
    reaper: Option<Reaper>,
}

/// A hold on a registration: while it lives the registration does, whatever happens to its memory.
///
/// It may be dropped by another thread than took it. It is not `Clone`: ask the cache again, a hit costs next to nothing.
pub struct Lease<'c, R: Registrar> {
    inner: &'c Inner<R>,
    slot: u32,
    cache: PhantomData<&'c RegistrationCache<R>>,
}

pub(super) struct Inner<R: Registrar> {
    registrar: Arc<R>,
    budget: Budget,
    slots: Box<[Slot]>,
    contents: Box<[Content<R::Handle>]>,
    table: Table,
    words: Words,
    core: Mutex<Core>,
    changed: Condvar,
    /// Threads that wait for leases to end.
    waiters: AtomicUsize,
    watch: Option<Watch>,
    lineage: Lineage,
    closing: AtomicBool,
}

/// What the lock guards. Nothing in it allocates after the beginning.
struct Core {
    free: Vec<u32>,
    filling: Vec<u32>,
    /// Filling slots whose memory has changed.
    tainted: Vec<u32>,
    stale: Vec<u32>,
    /// Being ended by somebody who has let go of the lock.
    ending: usize,
    policy: Policy,
    stats: Stats,
    /// Who waits for leases, in the order of their coming; beyond the first few thousand without order.
    waiting: Vec<u64>,
    tickets: u64,
    /// All leases ever taken, and how many of each slot are in that.
    taken: u64,
    folded: Vec<u32>,
}

/// How long a request may wait, and for what.
#[derive(Clone, Copy)]
enum Wait {
    /// For deregistrations and for others' registrations.
    Progress,
    /// For leases as well, until then.
    Leases(Instant),
}

/// Where memory comes from.
enum Origin {
    /// hostbuf's, which the registration keeps alive.
    Owned(Arc<dyn Send + Sync>),
    /// The user says when it changes.
    Explicit,
    /// Watched by the monitor. What may be registered beside the request.
    Watched { around: Option<Span> },
    /// Nobody can say when it changes: registered for its leases only.
    Unwatched(Unwatched),
}

/// Why a request cannot be met.
#[derive(Clone, Copy)]
enum Refusal {
    Budget { regions: usize, bytes: usize, leased: bool },
    Overlap(Span),
}

/// What is to be done without the lock.
enum Step {
    Have(u32),
    End(u32),
    Register(u32, Span),
    Again,
}

impl<R: Registrar> RegistrationCache<R> {
    /// A cache over `registrar` with a hard limit.
    ///
    /// With [`Monitor::Strict`] foreign memory is watched by the process's one monitor, which is started, and has to prove
    /// itself, with the first such cache. Where it cannot, foreign memory is registered for its leases only, and a warning
    /// says why.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a budget without room.
    pub fn new(registrar: Arc<R>, budget: Budget, monitor: Monitor) -> Result<RegistrationCache<R>> {
        let budget = budget.check()?;
        let slots = budget.regions;
        let page = memory::page_size() as usize;
        let core = Core {
            free: (0..slots as u32).rev().collect(),
            filling: Vec::with_capacity(slots),
            tainted: Vec::with_capacity(slots),
            stale: Vec::with_capacity(slots),
            ending: 0,
            policy: Policy::new(slots),
            stats: Stats::default(),
            waiting: Vec::with_capacity(MOST_WAITING),
            tickets: 0,
            taken: 0,
            folded: vec![0; slots],
        };
        let inner = Arc::new(Inner {
            registrar,
            budget,
            slots: (0..slots).map(|_| Slot::new()).collect(),
            contents: (0..slots).map(|_| Content::new()).collect(),
            table: Table::new(slots, page),
            words: Words::new(slots),
            core: Mutex::new(core),
            changed: Condvar::new(),
            waiters: AtomicUsize::new(0),
            watch: monitor.watch(),
            lineage: Lineage::here(),
            closing: AtomicBool::new(false),
        });
        if let Some(watch) = &inner.watch {
            let watcher: Arc<dyn Watcher> = inner.clone();
            watch.subscribe(watcher);
        }
        let reaper = Reaper::start(inner.clone())?;
        Ok(RegistrationCache { inner, reaper: Some(reaper) })
    }

    /// A cache as the environment says: [`Budget::from_environment`] and [`Monitor::from_environment`].
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn from_environment(registrar: Arc<R>) -> Result<RegistrationCache<R>> {
        RegistrationCache::new(registrar, Budget::from_environment()?, Monitor::from_environment()?)
    }

    /// A lease of a registration that covers `length` bytes from `start` with at least `access`.
    ///
    /// Waits for deregistrations, and for another thread's registration of the same range; not for leases.
    ///
    /// # Errors
    /// [`Error::Budget`] when the rest of the budget is leased, or the request is above all of it;
    /// [`Error::Registration`] when the device refuses; [`Error::Invalid`] for no range; [`Error::Forked`] in a child of
    /// the process that made the cache.
    #[inline]
    pub fn get(&self, start: *const u8, length: usize, access: Access) -> Result<Lease<'_, R>> {
        self.inner.get(start, length, access, Wait::Progress)
    }

    /// The same if nothing has to be registered, and nobody waited for.
    #[inline]
    pub fn try_get(&self, start: *const u8, length: usize, access: Access) -> Option<Lease<'_, R>> {
        let span = Span::new(start as usize, length).ok()?;
        self.inner.hit(span, access).map(|slot| self.inner.lease(slot))
    }

    /// The same as [`get`](RegistrationCache::get), and waits for leases too, first come first served.
    ///
    /// # Errors
    /// As [`get`](RegistrationCache::get); [`Error::Budget`] when the time is over.
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

    /// The memory in `span` has changed or is about to: no lease taken afterwards is of a registration made before. What is
    /// leased stays registered until its last lease ends. Call it before the pages change, where nobody else says so.
    ///
    /// # Errors
    /// What the device answered to the first deregistration that failed.
    pub fn invalidate(&self, span: Span) -> Result<()> {
        self.inner.forget(span, |stats| &mut stats.invalidated);
        let result = self.inner.end_stale();
        // What others are ending already has ended too when this returns.
        self.inner.wait_for_endings();
        result
    }

    /// Invalidates everything.
    ///
    /// # Errors
    /// As [`invalidate`](RegistrationCache::invalidate).
    pub fn flush(&self) -> Result<()> {
        self.invalidate(Span::new(1, usize::MAX - 1)?)
    }

    /// What it has done so far.
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
        // No lease borrows from it any more; one that was forgotten keeps its registration.
        self.inner.forget(Span::new(1, usize::MAX - 1).expect("a range"), |stats| &mut stats.invalidated);
        if let Err(error) = self.inner.end_stale() {
            tracing::error!(%error, "a registration of the cache could not be ended");
        }
        self.inner.wait_for_endings();
    }
}

impl<R: Registrar> fmt::Debug for RegistrationCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.inner.registrar.name();
        f.debug_struct("RegistrationCache").field("device", &name).field("stats", &self.stats()).finish()
    }
}

impl<R: Registrar> Lease<'_, R> {
    /// What the device gave.
    ///
    /// # Panics
    /// Never: it is there as long as the lease.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        // SAFETY: this is a lease of it.
        unsafe { self.inner.contents[self.slot as usize].handle() }.expect("a leased slot has content")
    }

    /// The registered range, which may be longer than what was asked for.
    #[must_use]
    pub fn span(&self) -> Span {
        self.inner.slots[self.slot as usize].span()
    }

    /// What the device may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.slots[self.slot as usize].access()
    }
}

impl<R: Registrar> Drop for Lease<'_, R> {
    #[inline]
    fn drop(&mut self) {
        if self.inner.lineage.is_here() {
            self.inner.give(self.slot);
        }
    }
}

impl<R: Registrar> fmt::Debug for Lease<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}, {})", self.span(), self.access())
    }
}

impl<R: Registrar> Inner<R> {
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self, slot: u32) -> Lease<'_, R> {
        Lease { inner: self, slot, cache: PhantomData }
    }

    #[inline]
    fn get(&self, start: *const u8, length: usize, access: Access, wait: Wait) -> Result<Lease<'_, R>> {
        let span = Span::new(start as usize, length)?;
        if let Some(slot) = self.hit(span, access) {
            return Ok(self.lease(slot));
        }
        self.miss(span, access, wait)
    }

    /// Takes a lease of what is there, without the lock.
    #[inline]
    fn hit(&self, span: Span, access: Access) -> Option<u32> {
        if !self.lineage.is_here() {
            return None;
        }
        let before = self.watch.as_ref().map_or(0, Watch::sequence);
        let slot = self.take_unchecked(span, access)?;
        if !self.slots[slot as usize].is_watched() || self.unchanged_since(before) || self.is_still_live(slot)
        {
            return Some(slot);
        }
        self.give(slot);
        None
    }

    /// Whether a slot that is leased is live after every change that was under way has been applied.
    #[cold]
    fn is_still_live(&self, slot: u32) -> bool {
        self.watch.as_ref().is_some_and(Watch::settle) && self.slots[slot as usize].is_live()
    }

    /// Whether no change of the address space has begun, and none has been heard of, since `before`.
    fn unchanged_since(&self, before: u64) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.unchanged_since(before))
    }

    #[inline]
    fn take_unchecked(&self, span: Span, access: Access) -> Option<u32> {
        if let Some(slot) = self.table.guess(span)
            && self.slots[slot as usize].covers(span, access)
            && self.take(slot, span, access)
        {
            return Some(slot);
        }
        match self.table.find(span, |slot| self.slots[slot as usize].covers(span, access)) {
            Found::Slot(slot) if self.take(slot, span, access) => Some(slot),
            _ => None,
        }
    }

    /// Counts a lease, and then looks whether there was anything to lease.
    #[inline]
    fn take(&self, slot: u32, span: Span, access: Access) -> bool {
        let here = &self.slots[slot as usize];
        self.words.take(slot);
        // From here on, if it is live, nobody ends it or makes it something else.
        if here.is_live() && here.covers(span, access) {
            return true;
        }
        self.give(slot);
        false
    }

    #[inline]
    fn give(&self, slot: u32) {
        self.words.give(slot);
        if self.slots[slot as usize].is_stale() {
            self.last_lease_perhaps(slot);
        }
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    #[cold]
    fn last_lease_perhaps(&self, slot: u32) {
        let ended = {
            let mut core = self.lock();
            let at = core.stale.iter().position(|&s| s == slot);
            let at = at.filter(|_| self.slots[slot as usize].state() == State::Stale);
            match at.filter(|_| self.words.leases(slot) == 0) {
                Some(at) => {
                    core.stale.swap_remove(at);
                    self.begin_to_end(&mut core, slot);
                    true
                }
                None => false,
            }
        };
        if ended && let Err(error) = self.end(slot) {
            tracing::error!(%error, "a registration could not be ended");
        }
    }

    fn get_many<'c>(&'c self, spans: &[Span], access: Access, leases: &mut Vec<Lease<'c, R>>) -> Result<()> {
        let before = leases.len();
        if !self.lineage.is_here() {
            return Err(Error::Forked);
        }
        leases.reserve(spans.len());
        let sequence = self.watch.as_ref().map_or(0, Watch::sequence);
        let mut watched = false;
        let mut missing = None;
        for (i, &span) in spans.iter().enumerate() {
            match self.take_unchecked(span, access) {
                Some(slot) => {
                    watched |= self.slots[slot as usize].is_watched();
                    leases.push(self.lease(slot));
                }
                None => {
                    missing = Some(i);
                    break;
                }
            }
        }
        let stands = |lease: &Lease<'_, R>| self.slots[lease.slot as usize].is_live();
        if watched
            && !self.unchanged_since(sequence)
            && !(self.watch.as_ref().is_some_and(Watch::settle) && leases[before..].iter().all(stands))
        {
            leases.truncate(before);
            missing = Some(0);
        }
        let Some(missing) = missing else { return Ok(()) };
        for &span in &spans[missing..] {
            let lease = match self.hit(span, access) {
                Some(slot) => Ok(self.lease(slot)),
                None => self.miss(span, access, Wait::Progress),
            };
            match lease {
                Ok(lease) => leases.push(lease),
                Err(error) => {
                    leases.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn miss(&self, span: Span, access: Access, wait: Wait) -> Result<Lease<'_, R>> {
        if !self.lineage.is_here() {
            return Err(Error::Forked);
        }
        let mut turn = Turn { inner: self, ticket: None, waited: false };
        let mut refused = false;
        let mut retries = 0;
        loop {
            let origin = self.origin(span);
            let step = self.step(span, access, wait, &origin, &mut turn);
            match step.map_err(|refusal| self.explain(span, access, refusal))? {
                Step::Again => {}
                Step::Have(slot) => {
                    if !self.slots[slot as usize].is_watched() || self.is_still_live(slot) {
                        if turn.waited {
                            self.lock().stats.coalesced += 1;
                        }
                        return Ok(self.lease(slot));
                    }
                    self.give(slot);
                }
                Step::End(slot) => self.end(slot)?,
                Step::Register(slot, whole) => match self.register(slot, whole, access, origin) {
                    Ok(true) => return Ok(self.lease(slot)),
                    Ok(false) => {
                        retries += 1;
                        if retries > RETRIES {
                            let why = "its memory is mapped anew again and again by other threads".to_owned();
                            return Err(self.refusal(whole, access, why));
                        }
                    }
                    // Another registration may stand in the way of the device's own limit: end one, and try again once.
                    Err(error) if !refused && error.is_out_of_memory() => {
                        refused = true;
                        self.lock().stats.failures += 1;
                        let victim = self.choose(Short::Bytes, key_of(span, access));
                        match victim {
                            Some(slot) => self.end(slot)?,
                            None => return Err(error),
                        }
                    }
                    Err(error) => {
                        self.lock().stats.failures += 1;
                        return Err(error);
                    }
                },
            }
        }
    }

    fn refusal(&self, span: Span, access: Access, why: String) -> Error {
        Error::Registration { device: self.registrar.name(), span, access, why, source: None }
    }

    fn origin(&self, span: Span) -> Origin {
        if let Some(memory) = owned::keeper(span) {
            return Origin::Owned(memory);
        }
        match &self.watch {
            None => Origin::Explicit,
            Some(watch) => match watch.arm(span) {
                Ok(around) => Origin::Watched { around },
                Err(why) => Origin::Unwatched(why),
            },
        }
    }

    /// One look at everything, with the lock.
    fn step(
        &self,
        span: Span,
        access: Access,
        wait: Wait,
        origin: &Origin,
        turn: &mut Turn<'_, R>,
    ) -> std::result::Result<Step, Refusal> {
        let mut core = self.lock();
        let fits = |slot: u32| self.slots[slot as usize].covers(span, access);
        if let Some(slot) = self.table.look(span, &fits)
            && self.take(slot, span, access)
        {
            return Ok(Step::Have(slot));
        }
        if core.filling.iter().any(|&slot| fits(slot) && !core.tainted.contains(&slot)) {
            let until = if let Wait::Leases(until) = wait { Some(until) } else { None };
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(self.over_budget(&mut core, true));
            }
            turn.waited = true;
            drop(self.wait(core, until));
            return Ok(Step::Again);
        }
        turn.waited = false;
        // A device that knows no overlaps: what overlaps goes first, and if that is in use the request cannot be met.
        if self.registrar.overlap() == Overlap::Refused
            && let Some(other) = self.in_the_way(&core, span)
        {
            if self.slots[other as usize].state() == State::Live && self.try_kill(&mut core, other) {
                core.stats.evictions += 1;
                return Ok(Step::End(other));
            }
            return match wait {
                Wait::Leases(until) if Instant::now() < until => {
                    drop(self.wait(core, Some(until)));
                    Ok(Step::Again)
                }
                _ if core.ending > 0 || self.slots[other as usize].state() == State::Filling => {
                    drop(self.wait(core, None));
                    Ok(Step::Again)
                }
                _ => Err(Refusal::Overlap(self.slots[other as usize].span())),
            };
        }
        let bytes = self.registrar.footprint(span);
        if bytes > self.budget.bytes {
            return Err(self.over_budget(&mut core, false));
        }
        let short = if core.free.is_empty() {
            Some(Short::Regions)
        } else if core.stats.bytes + bytes > self.budget.bytes {
            Some(Short::Bytes)
        } else {
            None
        };
        // First come, first served, among those who wait.
        let my_turn = turn.ticket.is_none_or(|ticket| core.waiting.first() == Some(&ticket));
        if let (Some(short), true) = (short, my_turn)
            && let Some(slot) = self.choose_with(&mut core, short, key_of(span, access))
        {
            return Ok(Step::End(slot));
        }
        if short.is_some() || !my_turn {
            if let Wait::Leases(until) = wait {
                if Instant::now() >= until {
                    return Err(self.over_budget(&mut core, true));
                }
                if turn.ticket.is_none() && core.waiting.len() < MOST_WAITING {
                    turn.ticket = Some(core.tickets);
                    let ticket = core.tickets;
                    core.waiting.push(ticket);
                    core.tickets += 1;
                    self.waiters.fetch_add(1, Ordering::Relaxed);
                }
                drop(self.wait(core, Some(until)));
                return Ok(Step::Again);
            }
            // What is being ended, or registered by others, will be room or can be ended soon.
            if core.ending > 0 || !core.filling.is_empty() {
                drop(self.wait(core, None));
                return Ok(Step::Again);
            }
            return Err(self.over_budget(&mut core, true));
        }
        let whole = self.widened(&core, span, access, origin);
        let bytes = self.registrar.footprint(whole);
        let slot = core.free.pop().expect("there is one, as was seen above");
        core.filling.push(slot);
        core.stats.bytes += bytes;
        core.stats.regions += 1;
        core.stats.peak_bytes = core.stats.peak_bytes.max(core.stats.bytes);
        core.stats.peak_regions = core.stats.peak_regions.max(core.stats.regions);
        let here = &self.slots[slot as usize];
        here.set_state(State::Filling);
        here.describe(whole, access, matches!(origin, Origin::Watched { .. }), bytes);
        Ok(Step::Register(slot, whole))
    }

    /// A registration, or one being made or ended, that overlaps `span`.
    fn in_the_way(&self, core: &Core, span: Span) -> Option<u32> {
        let mut found = None;
        self.table.overlapping(span, |slot| found = Some(slot));
        let overlaps = |slot: &&u32| self.slots[**slot as usize].span().overlaps(span);
        found.or_else(|| core.filling.iter().chain(&core.stale).find(overlaps).copied()).or_else(|| {
            if core.ending == 0 {
                return None;
            }
            let ending = |slot: &Slot| slot.state() == State::Ending && slot.span().overlaps(span);
            self.slots.iter().position(ending).map(|slot| slot as u32)
        })
    }

    /// More than was asked for, when a range grows step by step: at least twice what was there, so that all registrations
    /// of a growing range are at most twice the last; inside one mapping, within the budget, and never where pages have
    /// been given back.
    fn widened(&self, core: &Core, span: Span, access: Access, origin: &Origin) -> Span {
        let around = match origin {
            Origin::Watched { around: Some(around) } => *around,
            Origin::Owned(_) => match owned::range(span) {
                Some(range) => range,
                None => return span,
            },
            _ => return span,
        };
        if self.registrar.overlap() == Overlap::Refused {
            return span;
        }
        let mut longest = 0;
        self.table.overlapping(span, |slot| {
            let slot = &self.slots[slot as usize];
            let other = slot.span();
            if other.start() <= span.start() && other.end() < span.end() && slot.access() == access {
                longest = longest.max(other.end() - span.start());
            }
        });
        let wanted = (2 * longest).max(span.len()).min(around.end() - span.start());
        let Ok(whole) = Span::new(span.start(), wanted) else { return span };
        let fits = core.stats.bytes + self.registrar.footprint(whole) <= self.budget.bytes;
        if longest > 0 && around.contains(whole) && fits { whole } else { span }
    }

    /// Without the lock: registers, and puts it into the table with a lease of the caller's. `false` when the memory has
    /// changed meanwhile.
    fn register(&self, slot: u32, whole: Span, access: Access, origin: Origin) -> Result<bool> {
        let filling = Filling { inner: self, slot };
        let handle = self.registrar.register(whole, access)?;
        std::mem::forget(filling);
        let here = &self.slots[slot as usize];
        let watched = matches!(origin, Origin::Watched { .. });
        let (memory, unwatched) = match origin {
            Origin::Owned(memory) => (Some(memory), None),
            Origin::Unwatched(why) => (None, Some(why)),
            _ => (None, None),
        };
        // SAFETY: the slot is Filling by step(), which this thread called.
        unsafe { self.contents[slot as usize].fill(handle, memory) };
        // Changes that began before the device was done are applied now: those of this range have tainted it.
        let settled = !watched || self.watch.as_ref().is_some_and(Watch::settle);
        let mut core = self.lock();
        core.filling.retain(|&s| s != slot);
        let tainted = core.tainted.iter().position(|&s| s == slot);
        let tainted = tainted.map(|at| core.tainted.swap_remove(at)).is_some();
        core.stats.registered_bytes += whole.len() as u64;
        if tainted || !settled {
            core.stats.retried += 1;
            self.begin_to_end(&mut core, slot);
            drop(core);
            self.end(slot)?;
            return Ok(false);
        }
        core.stats.misses += 1;
        self.words.take(slot);
        match unwatched {
            Some(why) => {
                match why {
                    Unwatched::Memory => core.stats.unwatchable += 1,
                    Unwatched::Unproven => core.stats.unproven += 1,
                    Unwatched::Full => core.stats.unwatched += 1,
                }
                here.set_state(State::Stale);
                core.stale.push(slot);
            }
            None => {
                here.set_state(State::Live);
                self.table.insert(whole, slot);
                let (taken, _) = self.words.sum(slot);
                let key = key_of(whole, access);
                core.policy.add(slot, key, here.bytes(), taken);
            }
        }
        drop(core);
        self.changed.notify_all();
        Ok(true)
    }

    fn wait<'a>(&'a self, core: MutexGuard<'a, Core>, until: Option<Instant>) -> MutexGuard<'a, Core> {
        let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
        let waited = self.changed.wait_timeout(core, left.max(Duration::from_micros(50)));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn over_budget(&self, core: &mut Core, leased: bool) -> Refusal {
        core.stats.over_budget += 1;
        Refusal::Budget { regions: core.stats.regions, bytes: core.stats.bytes, leased }
    }

    /// The error for people, made without the lock since it allocates.
    fn explain(&self, span: Span, access: Access, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Budget { regions, bytes, leased } => Error::Budget {
                device: self.registrar.name(),
                span,
                regions: (regions, self.budget.regions),
                bytes: (bytes, self.budget.bytes),
                leased,
            },
            Refusal::Overlap(other) => self.refusal(
                span,
                access,
                format!(
                    "{other} is registered and in use, and this device knows no overlapping registrations"
                ),
            ),
        }
    }

    fn choose(&self, short: Short, key: u64) -> Option<u32> {
        let mut core = self.lock();
        self.choose_with(&mut core, short, key)
    }

    /// Chooses a registration that is not leased, and makes it Ending.
    fn choose_with(&self, core: &mut Core, short: Short, key: u64) -> Option<u32> {
        // A thread may take a lease between the count and the mark: then another is chosen.
        for _ in 0..=core.stats.regions {
            let count = |slot: u32| {
                let (taken, given) = self.words.sum(slot);
                (taken, taken != given)
            };
            let slot = core.policy.choose(short, key, count)?;
            if self.try_kill(core, slot) {
                core.stats.evictions += 1;
                return Some(slot);
            }
            let here = &self.slots[slot as usize];
            core.policy.add(slot, key_of(here.span(), here.access()), here.bytes(), self.words.sum(slot).0);
        }
        None
    }

    /// Makes a live slot Ending if it is not leased.
    fn try_kill(&self, core: &mut Core, slot: u32) -> bool {
        let here = &self.slots[slot as usize];
        here.set_state(State::Dying);
        if self.words.leases(slot) != 0 {
            here.set_state(State::Live);
            return false;
        }
        core.policy.remove(slot);
        self.table.remove(here.span(), slot);
        self.begin_to_end(core, slot);
        true
    }

    fn begin_to_end(&self, core: &mut Core, slot: u32) {
        self.slots[slot as usize].set_state(State::Ending);
        core.ending += 1;
    }

    /// Deregisters a slot that this thread has made Ending. Its part of the budget is free when the device has said yes.
    fn end(&self, slot: u32) -> Result<()> {
        let here = &self.slots[slot as usize];
        // SAFETY: it is Ending by this thread.
        let content = unsafe { self.contents[slot as usize].empty() };
        let (span, bytes) = (here.span(), here.bytes());
        let result = match content {
            Some((handle, memory)) => {
                let result = self.registrar.deregister(span, handle);
                // Only now may the memory go.
                drop(memory);
                result
            }
            None => Ok(()),
        };
        let mut core = self.lock();
        core.ending -= 1;
        if result.is_ok() {
            core.stats.regions -= 1;
            core.stats.bytes -= bytes;
            here.set_state(State::Free);
            core.free.push(slot);
        } else {
            core.stats.leaked += 1;
        }
        drop(core);
        self.changed.notify_all();
        result
    }

    /// Takes everything that overlaps `span` out of the table. What it was is ended later, by end_stale(). Called by the
    /// monitor too: no allocation, no system call but the wake.
    fn forget(&self, span: Span, cause: impl Fn(&mut Stats) -> &mut u64) {
        let mut core = self.lock();
        loop {
            let mut found = None;
            self.table.overlapping(span, |slot| found = Some(slot));
            let Some(slot) = found else { break };
            let here = &self.slots[slot as usize];
            here.set_state(State::Stale);
            core.policy.remove(slot);
            self.table.remove(here.span(), slot);
            core.stale.push(slot);
            *cause(&mut core.stats) += 1;
        }
        for at in 0..core.filling.len() {
            let slot = core.filling[at];
            if self.slots[slot as usize].span().overlaps(span) && !core.tainted.contains(&slot) {
                core.tainted.push(slot);
            }
        }
    }

    /// Ends what is stale and no longer leased.
    fn end_stale(&self) -> Result<()> {
        let mut result = Ok(());
        loop {
            let slot = {
                let mut core = self.lock();
                let at = core.stale.iter().position(|&slot| self.words.leases(slot) == 0);
                let Some(at) = at else { return result };
                let slot = core.stale.swap_remove(at);
                self.begin_to_end(&mut core, slot);
                slot
            };
            result = result.and(self.end(slot));
        }
    }

    fn wait_for_endings(&self) {
        let mut core = self.lock();
        while core.ending > 0 {
            core = self.wait(core, None);
        }
    }

    fn stats(&self) -> Stats {
        let mut core = self.lock();
        self.fold(&mut core);
        let mut stats = core.stats;
        stats.waiting = core.waiting.len();
        stats.hits = core.taken.saturating_sub(stats.misses + stats.coalesced);
        stats
    }

    /// Adds up the leases taken, before the threads' words of 32 bits go round.
    fn fold(&self, core: &mut Core) {
        for slot in 0..self.slots.len() {
            let (taken, _) = self.words.sum(slot as u32);
            core.taken += u64::from(taken.wrapping_sub(core.folded[slot]));
            core.folded[slot] = taken;
        }
    }
}

/// A slot that is being registered: freed again when that fails or panics.
struct Filling<'a, R: Registrar> {
    inner: &'a Inner<R>,
    slot: u32,
}

impl<R: Registrar> Drop for Filling<'_, R> {
    fn drop(&mut self) {
        let (inner, slot) = (self.inner, self.slot);
        let mut core = inner.lock();
        core.filling.retain(|&s| s != slot);
        core.tainted.retain(|&s| s != slot);
        core.stats.regions -= 1;
        core.stats.bytes -= inner.slots[slot as usize].bytes();
        inner.slots[slot as usize].set_state(State::Free);
        core.free.push(slot);
        drop(core);
        inner.changed.notify_all();
    }
}

/// One request's place among those who wait for leases.
struct Turn<'a, R: Registrar> {
    inner: &'a Inner<R>,
    ticket: Option<u64>,
    waited: bool,
}

impl<R: Registrar> Drop for Turn<'_, R> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut core = self.inner.lock();
            core.waiting.retain(|&t| t != ticket);
            drop(core);
            self.inner.waiters.fetch_sub(1, Ordering::Relaxed);
            self.inner.changed.notify_all();
        }
    }
}

impl<R: Registrar> Watcher for Inner<R> {
    fn changed(&self, span: Span) {
        self.forget(span, |stats| &mut stats.changed);
        self.changed.notify_all();
    }
}

fn key_of(span: Span, access: Access) -> u64 {
    let mix = |h: u64, v: u64| (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mix(mix(mix(1, span.start() as u64), span.len() as u64), u64::from(access.bits())) | 1
}
