//! A request that nothing covers: who waits, who goes, and what is registered.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::eviction::Shortage;
use super::growth::Growth;
use super::lease::Lease;
use super::shared::{CacheShared, CacheState, key_of};
use super::slot::SlotState;
use super::slot_details::SlotDetails;
use crate::error::{Error, Result};
use crate::register::monitor::{DescriptorSet, Unwatched, Watched};
use crate::register::own_ranges;
use crate::register::registrar::{Overlap, Registrar};
use crate::span::{Access, Span};

/// The number of times that a registration is repeated because its memory has changed, before it is made for its lease
/// only.
const RETRIES: u32 = 8;
/// The time for which a request on a device without overlapping registrations waits for other threads' changes of
/// memory.
pub(super) const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// The largest number of waiting threads that are served in order.
pub(super) const ORDERED_WAITERS: usize = 4096;

/// The time that a request may wait, and its reason.
#[derive(Clone, Copy)]
pub(super) enum WaitMode {
    /// For deregistrations and for others' registrations.
    Progress,
    /// For leases as well, until then.
    Leases(Instant),
}

impl WaitMode {
    fn is_over(self) -> bool {
        matches!(self, WaitMode::Leases(until) if Instant::now() >= until)
    }
}

/// The origin of memory.
enum MemoryOrigin {
    /// hostbuf's, which the registration keeps alive; the whole range of it.
    Owned(Arc<dyn Send + Sync>, Span),
    /// The user says when it changes.
    Explicit,
    /// Memory that the monitor watches, with all earlier changes applied.
    Watched(Watched),
    /// Nobody can say when it changes: registered for its leases only.
    Unwatched(Unwatched),
}

impl MemoryOrigin {
    /// Returns the descriptors whose earlier changes had been applied when the origin was determined.
    fn settled(&self) -> DescriptorSet {
        match self {
            MemoryOrigin::Watched(watched) => watched.descriptors,
            _ => DescriptorSet::EMPTY,
        }
    }
}

/// Why a request cannot be met.
#[derive(Clone, Copy)]
enum MissRefusal {
    Budget {
        regions: usize,
        bytes: usize,
        leased: bool,
    },
    /// Another registration overlaps the range. The flag tells whether it may be valid for the request, which is
    /// unknown if the memory is busy.
    Overlap(Span, bool),
    /// The time was over while another thread registered the same range.
    Late,
}

/// The next step of a miss, taken without the lock.
enum MissStep {
    Have(u32),
    End(u32),
    Register(u32, Span),
    Again,
}

/// The result of a registration.
enum Outcome {
    Done,
    /// The memory has changed meanwhile.
    Changed,
    /// More than was asked for lies in another mapping; the device was not asked.
    TooWide,
}

impl<R: Registrar> CacheShared<R> {
    #[cold]
    pub(super) fn miss(&self, span: Span, access: Access, wait: WaitMode) -> Result<Lease<'_, R>> {
        if !self.lineage.is_here() {
            return Err(Error::Forked);
        }
        // Now, since it may allocate, which must not be with the lock.
        let _ = self.counts.own();
        let mut turn =
            MissProgress { shared: self, ticket: None, waited: false, gone: None, exact: false, evicted: 0 };
        let mut refused = false;
        let mut retries = 0;
        let mut begun = None;
        loop {
            let mut origin = self.origin(span);
            if retries >= RETRIES && matches!(origin, MemoryOrigin::Watched(_)) {
                origin = MemoryOrigin::Unwatched(Unwatched::Busy);
            }
            let step = self.step(span, access, wait, &origin, &mut turn);
            // What stands in the way may be just what is asked for, and can be had once it is known to be live.
            if matches!(
                (&step, &origin),
                (Err(MissRefusal::Overlap(..)), MemoryOrigin::Unwatched(Unwatched::Busy))
            ) && *begun.get_or_insert_with(Instant::now) + BUSY_PATIENCE > Instant::now()
                && !wait.is_over()
            {
                std::thread::yield_now();
                retries = 0;
                continue;
            }
            match step.map_err(|refusal| self.explain(span, access, refusal))? {
                MissStep::Again => {}
                MissStep::Have(slot) => {
                    // arm() has settled the descriptors that watch the range now. The slot may belong to memory of
                    // another descriptor, which may be reporting an unmap at this moment.
                    let descriptors = self.slots[slot as usize].descriptors();
                    if origin.settled().contains(descriptors) || self.is_still_live(slot, descriptors) {
                        if turn.waited {
                            self.lock().stats.coalesced += 1;
                        }
                        return Ok(self.lease(slot));
                    }
                    self.take_back(slot);
                    retries += 1;
                }
                MissStep::End(slot) => self.deregister_or_log(slot),
                MissStep::Register(slot, whole) => match self.register(slot, whole, span, access, origin) {
                    Ok(Outcome::Done) => return Ok(self.lease(slot)),
                    Ok(Outcome::Changed) => retries += 1,
                    Ok(Outcome::TooWide) => turn.exact = true,
                    // The device was not asked.
                    Err(error @ Error::Freeze { .. }) => return Err(error),
                    // It may refuse what nobody has asked for.
                    Err(_) if whole != span => {
                        self.lock().stats.failures += 1;
                        turn.exact = true;
                    }
                    // Another registration may stand in the way of the device's own limit: end one, and try again once.
                    Err(error) if !refused && error.is_out_of_memory() => {
                        refused = true;
                        self.lock().stats.failures += 1;
                        let victim = self.choose(Shortage::Bytes, key_of(span, access));
                        match victim {
                            Some(slot) => self.deregister_or_log(slot),
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

    fn origin(&self, span: Span) -> MemoryOrigin {
        if let Some((whole, memory)) = own_ranges::find(span) {
            return MemoryOrigin::Owned(memory, whole);
        }
        match &self.watch {
            None => MemoryOrigin::Explicit,
            Some(watch) => match watch.watch(span) {
                Ok(watched) => MemoryOrigin::Watched(watched),
                Err(why) => MemoryOrigin::Unwatched(why),
            },
        }
    }

    /// One look at everything, with the lock.
    fn step(
        &self,
        span: Span,
        access: Access,
        wait: WaitMode,
        origin: &MemoryOrigin,
        turn: &mut MissProgress<'_, R>,
    ) -> std::result::Result<MissStep, MissRefusal> {
        let mut state = self.lock();
        let fits = |slot: u32| self.slots[slot as usize].covers(span, access);
        // What is there cannot be known to be live when nobody can say what changes.
        let knowable = !matches!(origin, MemoryOrigin::Unwatched(_));
        if knowable
            && let Some(slot) = self.table.look(span, &fits)
            && self.count_locked(slot, span, access)
        {
            return Ok(MissStep::Have(slot));
        }
        if state.registering.iter().any(|&slot| fits(slot) && !state.tainted.contains(&slot)) {
            if wait.is_over() {
                return Err(MissRefusal::Late);
            }
            let until = if let WaitMode::Leases(until) = wait { Some(until) } else { None };
            turn.waited = true;
            drop(self.wait(state, until));
            return Ok(MissStep::Again);
        }
        turn.waited = false;
        // A device that knows no overlaps: what overlaps goes first, and if that is in use the request cannot be met. What
        // is stale and not leased stands there only since the reaper has not come yet.
        let alone = self.registrar.overlap() == Overlap::Refused;
        if alone && let Some(slot) = self.claim_unused(&mut state, |other| other.overlaps(span)) {
            return Ok(MissStep::End(slot));
        }
        if alone && let Some(other) = self.conflicting(&state, span) {
            let here = &self.slots[other as usize];
            if here.state() == SlotState::Live && !here.is_kept() && self.try_evict(&mut state, other) {
                state.stats.evictions += 1;
                // What grew out of it need not be registered anew at each step.
                let asked = state.details[other as usize].requested.unwrap_or(here.span());
                if here.access() == access && turn.gone.is_none_or(|(gone, _)| gone.len() < here.span().len())
                {
                    turn.gone = Some((here.span(), asked));
                }
                return Ok(MissStep::End(other));
            }
            return match wait {
                WaitMode::Leases(until) if Instant::now() < until => {
                    drop(self.wait(state, Some(until)));
                    Ok(MissStep::Again)
                }
                _ if !state.deregistering.is_empty()
                    || self.slots[other as usize].state() == SlotState::Registering =>
                {
                    drop(self.wait(state, None));
                    Ok(MissStep::Again)
                }
                _ => {
                    let busy = matches!(origin, MemoryOrigin::Unwatched(Unwatched::Busy));
                    Err(MissRefusal::Overlap(self.slots[other as usize].span(), busy))
                }
            };
        }
        let bytes = self.registrar.footprint(span);
        if bytes > self.budget.bytes {
            return Err(self.over_budget(&mut state, false));
        }
        let short = if state.free.is_empty() {
            Some(Shortage::Regions)
        } else if bytes > self.bytes_left(&state) {
            Some(Shortage::Bytes)
        } else {
            None
        };
        if short.is_some()
            && let Some(slot) = self.claim_unused(&mut state, |_| true)
        {
            return Ok(MissStep::End(slot));
        }
        // First come, first served, among those who wait.
        let my_turn = match (turn.ticket, wait) {
            (Some(ticket), _) => state.waiting.first() == Some(&ticket),
            (None, WaitMode::Leases(_)) => state.waiting.is_empty(),
            (None, WaitMode::Progress) => true,
        };
        // Most requests want one ended. Before more go it is looked whether there can be room at all.
        if let (Some(short), true) = (short, my_turn)
            && (turn.evicted != 1 || bytes <= self.attainable_bytes(&state))
            && let Some(slot) = self.evict_from(&mut state, short, key_of(span, access))
        {
            turn.evicted += 1;
            return Ok(MissStep::End(slot));
        }
        if short.is_some() || !my_turn {
            if let WaitMode::Leases(until) = wait {
                if Instant::now() >= until {
                    return Err(self.over_budget(&mut state, true));
                }
                if turn.ticket.is_none() && state.waiting.len() < ORDERED_WAITERS {
                    turn.ticket = Some(state.tickets);
                    let ticket = state.tickets;
                    state.waiting.push(ticket);
                    state.tickets += 1;
                    self.waiters.fetch_add(1, Ordering::Relaxed);
                }
                drop(self.wait(state, Some(until)));
                return Ok(MissStep::Again);
            }
            // What is being ended, or registered by others, will be room or can be ended soon.
            if !state.deregistering.is_empty() || !state.registering.is_empty() {
                drop(self.wait(state, None));
                return Ok(MissStep::Again);
            }
            return Err(self.over_budget(&mut state, true));
        }
        let whole = match turn.exact {
            true => span,
            false => self.grown_range(&state, span, access, origin, turn.gone),
        };
        let bytes = self.registrar.footprint(whole);
        let slot = state.free.pop().expect("there is one, as was seen above");
        state.registering.push(slot);
        state.stats.bytes += bytes;
        state.stats.regions += 1;
        state.stats.peak_bytes = state.stats.peak_bytes.max(state.stats.bytes);
        state.stats.peak_regions = state.stats.peak_regions.max(state.stats.regions);
        let here = &self.slots[slot as usize];
        if here.describe(whole, access, origin.settled()) == 0 {
            // A guess of long ago could mean this one by its number.
            self.counts.forget(slot);
        }
        let kept = &mut state.details[slot as usize];
        (kept.bytes, kept.requested) = (bytes, Some(span));
        Ok(MissStep::Register(slot, whole))
    }

    /// Bytes of the budget that nothing has.
    fn bytes_left(&self, state: &CacheState) -> usize {
        self.budget.bytes.saturating_sub(state.stats.bytes)
    }

    /// The same when all that can be ended has been, and nothing that is under way stays.
    fn attainable_bytes(&self, state: &CacheState) -> usize {
        let goes = |&(number, _): &(usize, &SlotDetails)| {
            let slot = &self.slots[number];
            match slot.state() {
                SlotState::Registering | SlotState::Deregistering => true,
                SlotState::Live => !slot.is_kept() && self.counts.leases(number as u32) == 0,
                SlotState::Stale => self.counts.leases(number as u32) == 0,
                SlotState::Free | SlotState::Dying | SlotState::Leaked => false,
            }
        };
        let going = state.details.iter().enumerate().filter(goes).map(|(_, kept)| kept.bytes);
        going.fold(self.bytes_left(state), usize::saturating_add)
    }

    /// A registration, or one being made or ended, that overlaps `span`.
    fn conflicting(&self, state: &CacheState, span: Span) -> Option<u32> {
        let mut found = None;
        self.table.overlapping(span, |slot| found = Some(slot));
        let overlaps = |slot: &&u32| self.slots[**slot as usize].span().overlaps(span);
        let ending = state.deregistering.iter().map(|(slot, _)| slot);
        found.or_else(|| state.registering.iter().chain(&state.stale).chain(ending).find(overlaps).copied())
    }

    /// More than was asked for, when a range grows step by step, to either side or to both: at least twice what was there, so
    /// that all registrations of a growing range are at most twice the last; inside one mapping, within the budget, and never
    /// where pages have been given back. `gone`: what has just been ended for this request, on a device without overlaps.
    ///
    /// To one side, the last one is nearly twice what is asked for in the end at most, so all together four times that: the least
    /// that can be had where each registration is one piece and nobody knows where it ends (Chrobak, Kenyon-Mathieu,
    /// "Competitiveness via doubling", SIGACT News 37(4), 2006: online bidding).
    fn grown_range(
        &self,
        state: &CacheState,
        span: Span,
        access: Access,
        origin: &MemoryOrigin,
        gone: Option<(Span, Span)>,
    ) -> Span {
        let around = match origin {
            MemoryOrigin::Watched(Watched { around: Some(around), .. }) => *around,
            MemoryOrigin::Owned(_, whole) => *whole,
            _ => return span,
        };
        let mut grown = Growth::default();
        self.table.overlapping(span, |number| {
            let slot = &self.slots[number as usize];
            if slot.access() == access {
                let asked = state.details[number as usize].requested;
                grown.from(slot.span(), asked.unwrap_or(slot.span()), span);
            }
        });
        if let Some((gone, asked)) = gone.filter(|(gone, _)| gone.overlaps(span)) {
            grown.from(gone, asked, span);
        }
        let whole = grown.to(span, around);
        let fits = self.registrar.footprint(whole) <= self.bytes_left(state);
        let alone = self.registrar.overlap() == Overlap::Free || self.conflicting(state, whole).is_none();
        if whole.contains(span) && around.contains(whole) && fits && alone { whole } else { span }
    }

    /// Without the lock: registers, and puts it into the table with a lease of the caller's.
    fn register(
        &self,
        slot: u32,
        whole: Span,
        span: Span,
        access: Access,
        origin: MemoryOrigin,
    ) -> Result<Outcome> {
        let filling = RegisteringSlot { shared: self, slot };
        if access.writes() {
            // After it can be seen that this slot is being filled: whoever freezes marks first, and then looks.
            own_ranges::may_write(whole)?;
        }
        // What has changed before the slot was there to be tainted is not watched any more.
        if let MemoryOrigin::Watched(watched) = origin
            && !self.is_watched_still(whole, watched)
        {
            return Ok(Outcome::Changed);
        }
        // What is watched as one may be several mappings, of which one must not be written, say.
        if whole != span
            && matches!(origin, MemoryOrigin::Watched(_))
            && !self.watch.as_ref().is_some_and(|watch| watch.is_one_mapping(whole))
        {
            return Ok(Outcome::TooWide);
        }
        let handle = self.registrar.register(whole, access)?;
        std::mem::forget(filling);
        let here = &self.slots[slot as usize];
        let watched = matches!(origin, MemoryOrigin::Watched(_));
        let (memory, unwatched) = match origin {
            MemoryOrigin::Owned(memory, _) => (Some(memory), None),
            MemoryOrigin::Unwatched(why) => (None, Some(why)),
            _ => (None, None),
        };
        // SAFETY: the slot is Registering by step(), which this thread called.
        unsafe { here.fill(handle) };
        // Changes that began before the device was done are applied now: those of this range have tainted it.
        let settled = !watched || self.watch.as_ref().is_some_and(|watch| watch.settle(here.descriptors()));
        let mut state = self.lock();
        state.registering.retain(|&s| s != slot);
        let tainted = state.tainted.iter().position(|&s| s == slot);
        let tainted = tainted.map(|at| state.tainted.swap_remove(at)).is_some();
        state.stats.registered_bytes += whole.len() as u64;
        state.details[slot as usize].memory = memory;
        // Others change memory all the time: it stands for this lease, and is not kept.
        let unwatched = unwatched.or((!settled).then_some(Unwatched::Busy));
        if tainted {
            state.stats.retried += 1;
            self.begin_deregistering(&mut state, slot);
            drop(state);
            self.deregister_or_log(slot);
            return Ok(Outcome::Changed);
        }
        state.stats.misses += 1;
        self.counts.take(slot);
        match unwatched {
            Some(why) => {
                match why {
                    Unwatched::Memory => state.stats.unwatchable += 1,
                    Unwatched::Unproven => state.stats.unproven += 1,
                    Unwatched::Full => state.stats.unwatched += 1,
                    Unwatched::Busy => state.stats.busy += 1,
                }
                here.set_state(SlotState::Stale);
                state.stale.push(slot);
            }
            None => {
                here.set_state(SlotState::Live);
                self.table.insert(whole, slot);
                let (taken, _) = self.counts.sum(slot);
                let key = key_of(whole, access);
                let bytes = state.details[slot as usize].bytes;
                state.policy.add(slot, key, bytes, taken);
            }
        }
        self.unlock(state);
        Ok(Outcome::Done)
    }

    /// Returns whether the same descriptors still watch all of a range and, if the range may exceed the request, no
    /// page of its mapping has been discarded.
    fn is_watched_still(&self, whole: Span, before: Watched) -> bool {
        let Some(now) = self.watch.as_ref().and_then(|watch| watch.watch(whole).ok()) else { return false };
        let pristine = now.around.is_some_and(|around| around.contains(whole));
        before.descriptors.contains(now.descriptors) && (before.around.is_none() || pristine)
    }

    fn over_budget(&self, state: &mut CacheState, leased: bool) -> MissRefusal {
        state.stats.over_budget += 1;
        MissRefusal::Budget { regions: state.stats.regions, bytes: state.stats.bytes, leased }
    }

    /// The error for people, made without the lock since it allocates.
    fn explain(&self, span: Span, access: Access, refusal: MissRefusal) -> Error {
        match refusal {
            MissRefusal::Budget { regions, bytes, leased } => Error::Budget {
                device: self.registrar.name(),
                span,
                regions: (regions, self.budget.regions),
                bytes: (bytes, self.budget.bytes),
                leased,
            },
            MissRefusal::Late => {
                let why = "another thread was still registering it when the time was over".to_owned();
                self.refusal(span, access, why)
            }
            MissRefusal::Overlap(other, true) => self.refusal(
                span,
                access,
                format!(
                    "{other} is registered and in use, this device supports no overlapping registrations, and other threads \
                     change memory of the same mapping without a pause, so the cache cannot tell whether that registration is \
                     still valid: repeat the request, or send from memory with its own mapping (PinnedAlloc)"
                ),
            ),
            MissRefusal::Overlap(other, false) => self.refusal(
                span,
                access,
                format!(
                    "{other} is registered and in use, and this device knows no overlapping registrations"
                ),
            ),
        }
    }

    pub(super) fn choose(&self, short: Shortage, key: u64) -> Option<u32> {
        let mut state = self.lock();
        self.claim_unused(&mut state, |_| true).or_else(|| self.evict_from(&mut state, short, key))
    }

    /// Chooses a registration that is not leased, and makes it Ending.
    fn evict_from(&self, state: &mut CacheState, short: Shortage, key: u64) -> Option<u32> {
        // A thread may take a lease between the count and the mark: then another is chosen.
        for _ in 0..=state.stats.regions {
            let count = |slot: u32| {
                let (taken, given) = self.counts.sum(slot);
                (taken, taken != given)
            };
            let slot = state.policy.choose(short, key, count)?;
            if self.try_evict(state, slot) {
                state.stats.evictions += 1;
                return Some(slot);
            }
            let here = &self.slots[slot as usize];
            let bytes = state.details[slot as usize].bytes;
            state.policy.add(slot, key_of(here.span(), here.access()), bytes, self.counts.sum(slot).0);
        }
        None
    }
}

/// A slot that is being registered: freed again when that fails or panics.
struct RegisteringSlot<'a, R: Registrar> {
    shared: &'a CacheShared<R>,
    slot: u32,
}

impl<R: Registrar> Drop for RegisteringSlot<'_, R> {
    fn drop(&mut self) {
        let (shared, slot) = (self.shared, self.slot);
        let mut state = shared.lock();
        state.registering.retain(|&s| s != slot);
        state.tainted.retain(|&s| s != slot);
        state.stats.regions -= 1;
        state.stats.bytes -= state.details[slot as usize].bytes;
        shared.slots[slot as usize].set_state(SlotState::Free);
        state.free.push(slot);
        shared.unlock(state);
    }
}

/// One request's place among those who wait for leases.
struct MissProgress<'a, R: Registrar> {
    shared: &'a CacheShared<R>,
    ticket: Option<u64>,
    waited: bool,
    /// What has been ended for it, since a device without overlaps has no room for both: the longest of the same rights,
    /// and what had been asked for of it.
    gone: Option<(Span, Span)>,
    /// More than it asks for cannot be had.
    exact: bool,
    /// The number of registrations evicted for the request.
    evicted: usize,
}

impl<R: Registrar> Drop for MissProgress<'_, R> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = self.shared.lock();
            state.waiting.retain(|&t| t != ticket);
            self.shared.waiters.fetch_sub(1, Ordering::Relaxed);
            self.shared.unlock(state);
        }
    }
}
