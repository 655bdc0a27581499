//! The miss path: a request that no live registration covers waits, makes room, and registers.
//!
//! ```text
//!   lock:    find ── make_way ── wait_turn ── reserve ──> Reserved (the lock is released)
//!              │        │            │
//!              │        │            └ wait, and begin again
//!              │        └ deregister another registration, and begin again
//!              └ a lease; or wait for another thread's registration of the range, and begin again
//!   no lock: register, publish
//! ```

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::cache_slot::CacheSlot;
use super::deregister::{deregister_or_log, select};
use super::eviction::{Shortage, key_of};
use super::growth::grown_range;
use super::hit::{count_locked, hit, is_live_after_changes, key};
use super::lease::Lease;
use super::lease_end::uncount_lease;
use super::origin::MemoryOrigin;
use super::publish::{RegisterOutcome, register};
use super::refusal::MissRefusal;
use super::reserve::{Reserved, SlotRange};
use super::shared::CacheShared;
use super::slot::SlotState;
use super::state_lock::StateGuard;
use super::wait::{BUSY_TIMEOUT, WaitMode};
use crate::error::{Error, Result};
use crate::monitor::Unwatched;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// The number of times that a registration is repeated because its memory has changed, before it is
/// made for its lease only.
const RETRIES: u32 = 8;

/// Returns a lease of a registration that covers `span`, which is made if necessary.
///
/// # Errors
/// As [`RegistrationCache::get`](super::RegistrationCache::get).
#[inline(always)]
pub(super) fn get<R: Registrar>(
    shared: &CacheShared<R>,
    span: Span,
    access: Access,
    wait: WaitMode,
) -> Result<Lease<'_, R>> {
    match hit(shared, span, access) {
        Some(lease) => Ok(lease),
        None => miss(shared, span, access, wait),
    }
}

/// Returns a lease as [`get`] does, for a request that has not hit.
#[cold]
pub(super) fn miss<R: Registrar>(
    shared: &CacheShared<R>,
    span: Span,
    access: Access,
    wait: WaitMode,
) -> Result<Lease<'_, R>> {
    if !shared.fork_guard.is_current() {
        return Err(Error::Forked);
    }
    if !shared.registrar.is_short_enough(span) {
        return Err(shared.registrar.too_long(span, access));
    }
    // The thread's counters are allocated now, since that must not happen with the lock.
    let _ = shared.counts.of_thread();
    let slot = Miss::new(shared, span, access, wait).run()?;
    Ok(Lease::new(shared, slot, key(shared, slot)))
}

/// A request that has not hit.
struct Miss<'a, R: Registrar> {
    shared: &'a CacheShared<R>,
    span: Span,
    access: Access,
    wait: WaitMode,
    /// The place among the requests that wait for leases.
    ticket: Option<u64>,
    /// True if the request waits for another thread's registration of the same range.
    waits_for_same: bool,
    /// The longest registration with the same access that was deregistered for this request on a
    /// device without overlapping registrations, and the range that had been requested for it.
    replaced: Option<(Span, Span)>,
    /// True if no more than the request can be registered.
    exact: bool,
    /// The number of registrations evicted for the request.
    evicted: usize,
    /// The number of registrations that were repeated because their memory had changed.
    retries: u32,
    /// True if the device has reported that it is out of memory, and a registration was ended for
    /// it.
    has_freed_memory: bool,
    /// The time since which the request waits for busy memory.
    busy_since: Option<Instant>,
}

/// The next step of a miss, which is taken without the lock.
enum MissStep<'a, R: Registrar> {
    /// Validate the lease that was counted on this slot.
    Validate(CacheSlot),
    /// Deregister this slot, and begin again.
    Deregister(CacheSlot),
    /// Register the range of this slot.
    Register(Reserved<'a, R::Handle>),
    /// Begin again.
    Again,
}

/// The result of a part of a look at the cache: the next step, or the lock for the next part.
type Looked<'a, R, T = StateGuard<'a>> = std::result::Result<ControlFlow<MissStep<'a, R>, T>, MissRefusal>;

impl<'a, R: Registrar> Miss<'a, R> {
    fn new(shared: &'a CacheShared<R>, span: Span, access: Access, wait: WaitMode) -> Miss<'a, R> {
        Miss {
            shared,
            span,
            access,
            wait,
            ticket: None,
            waits_for_same: false,
            replaced: None,
            exact: false,
            evicted: 0,
            retries: 0,
            has_freed_memory: false,
            busy_since: None,
        }
    }

    /// Returns the slot in which a lease has been counted.
    fn run(mut self) -> Result<CacheSlot> {
        let mut known = None;
        loop {
            // An eviction does not change the memory of the request.
            let origin = known.take().unwrap_or_else(|| self.origin());
            let step = match self.look(&origin) {
                Err(MissRefusal::Overlap { .. }) if origin.is_busy() && self.may_wait_for_busy_memory() => {
                    // The conflicting registration may serve the request once it is known to be
                    // live.
                    std::thread::yield_now();
                    self.retries = 0;
                    continue;
                }
                Err(refusal) => {
                    let (device, budget) = (self.shared.registrar.name(), self.shared.lock().usage.limit());
                    return Err(refusal.into_error(device, budget, self.span, self.access));
                }
                Ok(step) => step,
            };
            match step {
                MissStep::Again => {}
                MissStep::Deregister(slot) => {
                    deregister_or_log(self.shared, slot);
                    known = Some(origin);
                }
                MissStep::Validate(slot) => {
                    if self.is_valid(slot, &origin) {
                        return Ok(slot);
                    }
                    self.retries += 1;
                }
                MissStep::Register(reserved) => {
                    let (slot, whole) = (reserved.slot(), reserved.span());
                    match register(self.shared, reserved, self.span, origin) {
                        Ok(RegisterOutcome::Registered) => return Ok(slot),
                        Ok(RegisterOutcome::Changed) => self.retries += 1,
                        Ok(RegisterOutcome::TooWide) => self.exact = true,
                        Err(error) => self.handle_failure(error, whole)?,
                    }
                }
            }
        }
    }

    /// Determines the origin of the memory. Memory that has changed too often counts as busy.
    #[inline(always)]
    fn origin(&self) -> MemoryOrigin {
        let mut origin = MemoryOrigin::of(self.span, self.shared.monitor.as_ref());
        if self.retries >= RETRIES && matches!(origin, MemoryOrigin::Watched(_)) {
            origin = MemoryOrigin::Unwatched(Unwatched::Busy);
        }
        origin
    }

    fn may_wait_for_busy_memory(&mut self) -> bool {
        *self.busy_since.get_or_insert_with(Instant::now) + BUSY_TIMEOUT > Instant::now()
            && !self.wait.is_over()
    }

    /// Returns whether a slot in which a lease has been counted was live after all earlier changes
    /// of its memory. If not, the lease is uncounted.
    fn is_valid(&self, slot: CacheSlot, origin: &MemoryOrigin) -> bool {
        // Watching the range has settled the descriptors that watch it now. The slot may belong to
        // memory of another descriptor, which may be reporting an unmap at this moment.
        let descriptors = self.shared.slots[slot].descriptors();
        if origin.settled().contains(descriptors) || is_live_after_changes(self.shared, slot, descriptors) {
            if self.waits_for_same {
                self.shared.lock().stats.coalesced += 1;
            }
            return true;
        }
        uncount_lease(self.shared, slot);
        false
    }

    /// Handles an error of the device, which is returned unless another attempt may succeed.
    fn handle_failure(&mut self, error: Error, whole: Span) -> Result<()> {
        if matches!(error, Error::Freeze { .. }) {
            // The device was not called.
            return Err(error);
        }
        self.shared.lock().stats.failures += 1;
        if whole != self.span {
            // The device may refuse only the part that was not requested.
            self.exact = true;
            return Ok(());
        }
        if !self.has_freed_memory && error.is_out_of_memory() {
            // Another registration may use up the device's own limit.
            self.has_freed_memory = true;
            if let Some(slot) = select(self.shared, Shortage::Bytes, key_of(self.span, self.access)) {
                deregister_or_log(self.shared, slot);
                return Ok(());
            }
        }
        Err(error)
    }

    /// Looks at the cache with the lock, and selects the next step.
    #[inline(always)]
    fn look(&mut self, origin: &MemoryOrigin) -> std::result::Result<MissStep<'a, R>, MissRefusal> {
        let state = match self.find(self.shared.lock(), origin)? {
            Continue(state) => state,
            Break(step) => return Ok(step),
        };
        let (state, must_wait) = match self.make_way(state, origin)? {
            Continue(way) => way,
            Break(step) => return Ok(step),
        };
        match if must_wait { self.wait_turn(state)? } else { Continue(state) } {
            Continue(state) => Ok(MissStep::Register(self.reserve(state, origin))),
            Break(step) => Ok(step),
        }
    }

    /// Counts a lease of a live registration that covers the request, or waits for one that another
    /// thread is making.
    #[inline(always)]
    fn find(&mut self, state: StateGuard<'a>, origin: &MemoryOrigin) -> Looked<'a, R> {
        let slots = &self.shared.slots;
        // A registration of unwatched memory cannot be known to be live.
        if !matches!(origin, MemoryOrigin::Unwatched(_))
            && let Some(slot) = slots.find_locked(self.span, self.access)
            && count_locked(self.shared, slot, self.span, self.access)
        {
            return Ok(Break(MissStep::Validate(slot)));
        }
        self.waits_for_same = state.lists.any_registering(|slot| slots[slot].covers(self.span, self.access));
        if !self.waits_for_same {
            return Ok(Continue(state));
        }
        if self.wait.is_over() {
            return Err(MissRefusal::TimedOut);
        }
        Ok(self.wait_for_change(state, self.wait.until()))
    }

    /// Selects registrations to be deregistered until the device and the budget have room for the
    /// request. Returns the lock, and whether the request must wait for room or for its turn.
    #[inline(always)]
    fn make_way(
        &mut self,
        state: StateGuard<'a>,
        origin: &MemoryOrigin,
    ) -> Looked<'a, R, (StateGuard<'a>, bool)> {
        let shared = self.shared;
        let (slots, counts) = (&shared.slots, &shared.counts);
        let mut state = match shared.registrar.allows_overlap() {
            true => state,
            false => match self.clear_conflict(state, origin)? {
                Continue(state) => state,
                Break(step) => return Ok(Break(step)),
            },
        };
        let bytes = shared.registrar.footprint(self.span);
        if bytes > state.usage.limit().bytes {
            return Err(over_budget(&mut state, false));
        }
        let shortage = match () {
            () if !state.lists.has_free() => Some(Shortage::Registrations),
            () if bytes > state.usage.bytes_left() => Some(Shortage::Bytes),
            () => None,
        };
        if shortage.is_some()
            && let Some(slot) = state.claim_unused(slots, counts, |_| true)
        {
            return Ok(Break(MissStep::Deregister(slot)));
        }
        // Requests that wait for leases are served in order; requests that do not wait for leases
        // may overtake them.
        let is_next = match (self.ticket, self.wait) {
            (Some(ticket), _) => state.queue.is_first(ticket),
            (None, WaitMode::Leases(_)) => state.queue.is_empty(),
            (None, WaitMode::Progress) => true,
        };
        // Most requests need one eviction. Before a second one, a request checks whether evictions
        // can make enough room.
        if let (Some(shortage), true) = (shortage, is_next)
            && (self.evicted != 1 || bytes <= state.attainable_bytes(slots, counts))
            && let Some(slot) = state.evict(slots, counts, shortage, key_of(self.span, self.access))
        {
            self.evicted += 1;
            return Ok(Break(MissStep::Deregister(slot)));
        }
        Ok(Continue((state, shortage.is_some() || !is_next)))
    }

    /// Selects a registration to be deregistered that overlaps the request, on a device without
    /// overlapping registrations. If it is in use, the request waits or fails.
    fn clear_conflict(&mut self, mut state: StateGuard<'a>, origin: &MemoryOrigin) -> Looked<'a, R> {
        let (slots, counts) = (&self.shared.slots, &self.shared.counts);
        // A stale registration without leases only waits for the reaper.
        if let Some(slot) = state.claim_unused(slots, counts, |other| other.overlaps(self.span)) {
            return Ok(Break(MissStep::Deregister(slot)));
        }
        let Some(other) = state.conflicting(slots, self.span) else { return Ok(Continue(state)) };
        let here = &slots[other];
        if here.state() == SlotState::Live && !here.is_kept() && state.try_evict(slots, counts, other) {
            state.stats.evictions += 1;
            // A range that grows out of this one need not be registered anew at each step.
            let requested = state.details(other).requested.unwrap_or(here.span());
            let is_longest = self.replaced.is_none_or(|(replaced, _)| replaced.len() < here.span().len());
            if here.access() == self.access && is_longest {
                self.replaced = Some((here.span(), requested));
            }
            return Ok(Break(MissStep::Deregister(other)));
        }
        match self.wait {
            WaitMode::Leases(until) if !self.wait.is_over() => Ok(self.wait_for_change(state, Some(until))),
            _ if !state.lists.deregistering().is_empty() || here.state() == SlotState::Registering => {
                Ok(self.wait_for_change(state, None))
            }
            _ => Err(MissRefusal::Overlap { other: here.span(), busy: origin.is_busy() }),
        }
    }

    /// Waits for room in the budget, or for the request's turn.
    #[inline(always)]
    fn wait_turn(&mut self, mut state: StateGuard<'a>) -> Looked<'a, R> {
        if let WaitMode::Leases(until) = self.wait {
            if self.wait.is_over() {
                return Err(over_budget(&mut state, true));
            }
            if self.ticket.is_none() {
                self.ticket = state.queue.join();
                if self.ticket.is_some() {
                    self.shared.waiters.fetch_add(1, Ordering::Relaxed);
                }
            }
            return Ok(self.wait_for_change(state, Some(until)));
        }
        // Registrations in progress will be free, or can be evicted soon.
        if state.lists.is_in_progress() {
            return Ok(self.wait_for_change(state, None));
        }
        Err(over_budget(&mut state, true))
    }

    /// Reserves a slot and a part of the budget, for the request or for more than it, and releases
    /// the lock.
    #[inline(always)]
    fn reserve(&self, state: StateGuard<'a>, origin: &MemoryOrigin) -> Reserved<'a, R::Handle> {
        let shared = self.shared;
        let whole = origin.room().filter(|_| !self.exact).map_or(self.span, |room| {
            let grown = grown_range(&state, &shared.slots, self.span, self.access, room, self.replaced);
            let fits = shared.registrar.footprint(grown) <= state.usage.bytes_left()
                && shared.registrar.is_short_enough(grown);
            let is_free =
                || shared.registrar.allows_overlap() || state.conflicting(&shared.slots, grown).is_none();
            if fits && is_free() { grown } else { self.span }
        });
        let range = SlotRange {
            span: whole,
            access: self.access,
            watched: origin.settled(),
            bytes: shared.registrar.footprint(whole),
            requested: self.span,
        };
        // A hint from long ago could have the version that the slot begins with again.
        let reused = |slot| shared.counts.remove_hints(slot);
        Reserved::new(&shared.state, state, &shared.slots, &range, reused)
            .expect("make_way has found a free slot")
    }

    /// Waits for a change of the cache, at most until `until`, and begins again.
    fn wait_for_change<T>(
        &self,
        state: StateGuard<'a>,
        until: Option<Instant>,
    ) -> ControlFlow<MissStep<'a, R>, T> {
        drop(self.shared.state.wait(state, until));
        Break(MissStep::Again)
    }
}

impl<R: Registrar> Drop for Miss<'_, R> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = self.shared.lock();
            state.queue.leave(ticket);
            self.shared.waiters.fetch_sub(1, Ordering::Relaxed);
            self.shared.state.unlock(state);
        }
    }
}

/// Counts a request that the budget has no room for, and returns the reason.
fn over_budget(state: &mut StateGuard<'_>, leased: bool) -> MissRefusal {
    state.stats.over_budget += 1;
    MissRefusal::Budget { registrations: state.usage.registrations(), bytes: state.usage.bytes(), leased }
}
