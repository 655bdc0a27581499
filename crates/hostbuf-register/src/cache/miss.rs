//! A request that nothing covers: who waits, who goes, and what is registered.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::eviction::Short;
use super::growth::Grown;
use super::lease::Lease;
use super::shared::{Core, Inner, key_of};
use super::slot::State;
use super::slot_details::Kept;
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
pub(super) const UNREST: Duration = Duration::from_secs(1);
/// The largest number of waiting threads that are served in order.
pub(super) const MOST_WAITING: usize = 4096;

/// The time that a request may wait, and its reason.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    /// For deregistrations and for others' registrations.
    Progress,
    /// For leases as well, until then.
    Leases(Instant),
}

impl Wait {
    fn is_over(self) -> bool {
        matches!(self, Wait::Leases(until) if Instant::now() >= until)
    }
}

/// The origin of memory.
enum Origin {
    /// hostbuf's, which the registration keeps alive; the whole range of it.
    Owned(Arc<dyn Send + Sync>, Span),
    /// The user says when it changes.
    Explicit,
    /// Memory that the monitor watches, with all earlier changes applied.
    Watched(Watched),
    /// Nobody can say when it changes: registered for its leases only.
    Unwatched(Unwatched),
}

impl Origin {
    /// Returns the descriptors whose earlier changes had been applied when the origin was determined.
    fn settled(&self) -> DescriptorSet {
        match self {
            Origin::Watched(watched) => watched.descriptors,
            _ => DescriptorSet::EMPTY,
        }
    }
}

/// Why a request cannot be met.
#[derive(Clone, Copy)]
enum Refusal {
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
enum Step {
    Have(u32),
    End(u32),
    Register(u32, Span),
    Again,
}

/// The result of a registration.
enum Made {
    Done,
    /// The memory has changed meanwhile.
    Changed,
    /// More than was asked for lies in another mapping; the device was not asked.
    TooWide,
}

impl<R: Registrar> Inner<R> {
    #[cold]
    pub(super) fn miss(&self, span: Span, access: Access, wait: Wait) -> Result<Lease<'_, R>> {
        if !self.lineage.is_here() {
            return Err(Error::Forked);
        }
        // Now, since it may allocate, which must not be with the lock.
        let _ = self.words.own();
        let mut turn =
            Turn { inner: self, ticket: None, waited: false, gone: None, exact: false, evicted: 0 };
        let mut refused = false;
        let mut retries = 0;
        let mut begun = None;
        loop {
            let mut origin = self.origin(span);
            if retries >= RETRIES && matches!(origin, Origin::Watched(_)) {
                origin = Origin::Unwatched(Unwatched::Restless);
            }
            let step = self.step(span, access, wait, &origin, &mut turn);
            // What stands in the way may be just what is asked for, and can be had once it is known to be live.
            if matches!((&step, &origin), (Err(Refusal::Overlap(..)), Origin::Unwatched(Unwatched::Restless)))
                && *begun.get_or_insert_with(Instant::now) + UNREST > Instant::now()
                && !wait.is_over()
            {
                std::thread::yield_now();
                retries = 0;
                continue;
            }
            match step.map_err(|refusal| self.explain(span, access, refusal))? {
                Step::Again => {}
                Step::Have(slot) => {
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
                Step::End(slot) => self.end_unasked(slot),
                Step::Register(slot, whole) => match self.register(slot, whole, span, access, origin) {
                    Ok(Made::Done) => return Ok(self.lease(slot)),
                    Ok(Made::Changed) => retries += 1,
                    Ok(Made::TooWide) => turn.exact = true,
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
                        let victim = self.choose(Short::Bytes, key_of(span, access));
                        match victim {
                            Some(slot) => self.end_unasked(slot),
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
        if let Some((whole, memory)) = own_ranges::find(span) {
            return Origin::Owned(memory, whole);
        }
        match &self.watch {
            None => Origin::Explicit,
            Some(watch) => match watch.arm(span) {
                Ok(watched) => Origin::Watched(watched),
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
        // What is there cannot be known to be live when nobody can say what changes.
        let knowable = !matches!(origin, Origin::Unwatched(_));
        if knowable
            && let Some(slot) = self.table.look(span, &fits)
            && self.take_locked(slot, span, access)
        {
            return Ok(Step::Have(slot));
        }
        if core.filling.iter().any(|&slot| fits(slot) && !core.tainted.contains(&slot)) {
            if wait.is_over() {
                return Err(Refusal::Late);
            }
            let until = if let Wait::Leases(until) = wait { Some(until) } else { None };
            turn.waited = true;
            drop(self.wait(core, until));
            return Ok(Step::Again);
        }
        turn.waited = false;
        // A device that knows no overlaps: what overlaps goes first, and if that is in use the request cannot be met. What
        // is stale and not leased stands there only since the reaper has not come yet.
        let alone = self.registrar.overlap() == Overlap::Refused;
        if alone && let Some(slot) = self.idle(&mut core, |other| other.overlaps(span)) {
            return Ok(Step::End(slot));
        }
        if alone && let Some(other) = self.in_the_way(&core, span) {
            let here = &self.slots[other as usize];
            if here.state() == State::Live && !here.is_kept() && self.try_kill(&mut core, other) {
                core.stats.evictions += 1;
                // What grew out of it need not be registered anew at each step.
                let asked = core.kept[other as usize].asked.unwrap_or(here.span());
                if here.access() == access && turn.gone.is_none_or(|(gone, _)| gone.len() < here.span().len())
                {
                    turn.gone = Some((here.span(), asked));
                }
                return Ok(Step::End(other));
            }
            return match wait {
                Wait::Leases(until) if Instant::now() < until => {
                    drop(self.wait(core, Some(until)));
                    Ok(Step::Again)
                }
                _ if !core.ending.is_empty() || self.slots[other as usize].state() == State::Filling => {
                    drop(self.wait(core, None));
                    Ok(Step::Again)
                }
                _ => {
                    let busy = matches!(origin, Origin::Unwatched(Unwatched::Restless));
                    Err(Refusal::Overlap(self.slots[other as usize].span(), busy))
                }
            };
        }
        let bytes = self.registrar.footprint(span);
        if bytes > self.budget.bytes {
            return Err(self.over_budget(&mut core, false));
        }
        let short = if core.free.is_empty() {
            Some(Short::Regions)
        } else if bytes > self.left(&core) {
            Some(Short::Bytes)
        } else {
            None
        };
        if short.is_some()
            && let Some(slot) = self.idle(&mut core, |_| true)
        {
            return Ok(Step::End(slot));
        }
        // First come, first served, among those who wait.
        let my_turn = match (turn.ticket, wait) {
            (Some(ticket), _) => core.waiting.first() == Some(&ticket),
            (None, Wait::Leases(_)) => core.waiting.is_empty(),
            (None, Wait::Progress) => true,
        };
        // Most requests want one ended. Before more go it is looked whether there can be room at all.
        if let (Some(short), true) = (short, my_turn)
            && (turn.evicted != 1 || bytes <= self.could_be_left(&core))
            && let Some(slot) = self.choose_with(&mut core, short, key_of(span, access))
        {
            turn.evicted += 1;
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
            if !core.ending.is_empty() || !core.filling.is_empty() {
                drop(self.wait(core, None));
                return Ok(Step::Again);
            }
            return Err(self.over_budget(&mut core, true));
        }
        let whole = match turn.exact {
            true => span,
            false => self.widened(&core, span, access, origin, turn.gone),
        };
        let bytes = self.registrar.footprint(whole);
        let slot = core.free.pop().expect("there is one, as was seen above");
        core.filling.push(slot);
        core.stats.bytes += bytes;
        core.stats.regions += 1;
        core.stats.peak_bytes = core.stats.peak_bytes.max(core.stats.bytes);
        core.stats.peak_regions = core.stats.peak_regions.max(core.stats.regions);
        let here = &self.slots[slot as usize];
        if here.describe(whole, access, origin.settled()) == 0 {
            // A guess of long ago could mean this one by its number.
            self.words.forget(slot);
        }
        let kept = &mut core.kept[slot as usize];
        (kept.bytes, kept.asked) = (bytes, Some(span));
        Ok(Step::Register(slot, whole))
    }

    /// Bytes of the budget that nothing has.
    fn left(&self, core: &Core) -> usize {
        self.budget.bytes.saturating_sub(core.stats.bytes)
    }

    /// The same when all that can be ended has been, and nothing that is under way stays.
    fn could_be_left(&self, core: &Core) -> usize {
        let goes = |&(number, _): &(usize, &Kept)| {
            let slot = &self.slots[number];
            match slot.state() {
                State::Filling | State::Ending => true,
                State::Live => !slot.is_kept() && self.words.leases(number as u32) == 0,
                State::Stale => self.words.leases(number as u32) == 0,
                State::Free | State::Dying | State::Lost => false,
            }
        };
        let going = core.kept.iter().enumerate().filter(goes).map(|(_, kept)| kept.bytes);
        going.fold(self.left(core), usize::saturating_add)
    }

    /// A registration, or one being made or ended, that overlaps `span`.
    fn in_the_way(&self, core: &Core, span: Span) -> Option<u32> {
        let mut found = None;
        self.table.overlapping(span, |slot| found = Some(slot));
        let overlaps = |slot: &&u32| self.slots[**slot as usize].span().overlaps(span);
        let ending = core.ending.iter().map(|(slot, _)| slot);
        found.or_else(|| core.filling.iter().chain(&core.stale).chain(ending).find(overlaps).copied())
    }

    /// More than was asked for, when a range grows step by step, to either side or to both: at least twice what was there, so
    /// that all registrations of a growing range are at most twice the last; inside one mapping, within the budget, and never
    /// where pages have been given back. `gone`: what has just been ended for this request, on a device without overlaps.
    ///
    /// To one side, the last one is nearly twice what is asked for in the end at most, so all together four times that: the least
    /// that can be had where each registration is one piece and nobody knows where it ends (Chrobak, Kenyon-Mathieu,
    /// "Competitiveness via doubling", SIGACT News 37(4), 2006: online bidding).
    fn widened(
        &self,
        core: &Core,
        span: Span,
        access: Access,
        origin: &Origin,
        gone: Option<(Span, Span)>,
    ) -> Span {
        let around = match origin {
            Origin::Watched(Watched { around: Some(around), .. }) => *around,
            Origin::Owned(_, whole) => *whole,
            _ => return span,
        };
        let mut grown = Grown::default();
        self.table.overlapping(span, |number| {
            let slot = &self.slots[number as usize];
            if slot.access() == access {
                let asked = core.kept[number as usize].asked;
                grown.from(slot.span(), asked.unwrap_or(slot.span()), span);
            }
        });
        if let Some((gone, asked)) = gone.filter(|(gone, _)| gone.overlaps(span)) {
            grown.from(gone, asked, span);
        }
        let whole = grown.to(span, around);
        let fits = self.registrar.footprint(whole) <= self.left(core);
        let alone = self.registrar.overlap() == Overlap::Free || self.in_the_way(core, whole).is_none();
        if whole.contains(span) && around.contains(whole) && fits && alone { whole } else { span }
    }

    /// Without the lock: registers, and puts it into the table with a lease of the caller's.
    fn register(&self, slot: u32, whole: Span, span: Span, access: Access, origin: Origin) -> Result<Made> {
        let filling = Filling { inner: self, slot };
        if access.writes() {
            // After it can be seen that this slot is being filled: whoever freezes marks first, and then looks.
            own_ranges::may_write(whole)?;
        }
        // What has changed before the slot was there to be tainted is not watched any more.
        if let Origin::Watched(watched) = origin
            && !self.is_watched_still(whole, watched)
        {
            return Ok(Made::Changed);
        }
        // What is watched as one may be several mappings, of which one must not be written, say.
        if whole != span
            && matches!(origin, Origin::Watched(_))
            && !self.watch.as_ref().is_some_and(|watch| watch.is_one_mapping(whole))
        {
            return Ok(Made::TooWide);
        }
        let handle = self.registrar.register(whole, access)?;
        std::mem::forget(filling);
        let here = &self.slots[slot as usize];
        let watched = matches!(origin, Origin::Watched(_));
        let (memory, unwatched) = match origin {
            Origin::Owned(memory, _) => (Some(memory), None),
            Origin::Unwatched(why) => (None, Some(why)),
            _ => (None, None),
        };
        // SAFETY: the slot is Filling by step(), which this thread called.
        unsafe { here.fill(handle) };
        // Changes that began before the device was done are applied now: those of this range have tainted it.
        let settled = !watched || self.watch.as_ref().is_some_and(|watch| watch.settle(here.descriptors()));
        let mut core = self.lock();
        core.filling.retain(|&s| s != slot);
        let tainted = core.tainted.iter().position(|&s| s == slot);
        let tainted = tainted.map(|at| core.tainted.swap_remove(at)).is_some();
        core.stats.registered_bytes += whole.len() as u64;
        core.kept[slot as usize].memory = memory;
        // Others change memory all the time: it stands for this lease, and is not kept.
        let unwatched = unwatched.or((!settled).then_some(Unwatched::Restless));
        if tainted {
            core.stats.retried += 1;
            self.begin_to_end(&mut core, slot);
            drop(core);
            self.end_unasked(slot);
            return Ok(Made::Changed);
        }
        core.stats.misses += 1;
        self.words.take(slot);
        match unwatched {
            Some(why) => {
                match why {
                    Unwatched::Memory => core.stats.unwatchable += 1,
                    Unwatched::Unproven => core.stats.unproven += 1,
                    Unwatched::Full => core.stats.unwatched += 1,
                    Unwatched::Restless => core.stats.restless += 1,
                }
                here.set_state(State::Stale);
                core.stale.push(slot);
            }
            None => {
                here.set_state(State::Live);
                self.table.insert(whole, slot);
                let (taken, _) = self.words.sum(slot);
                let key = key_of(whole, access);
                let bytes = core.kept[slot as usize].bytes;
                core.policy.add(slot, key, bytes, taken);
            }
        }
        self.unlock(core);
        Ok(Made::Done)
    }

    /// Returns whether the same descriptors still watch all of a range and, if the range may exceed the request, no
    /// page of its mapping has been discarded.
    fn is_watched_still(&self, whole: Span, before: Watched) -> bool {
        let Some(now) = self.watch.as_ref().and_then(|watch| watch.arm(whole).ok()) else { return false };
        let pristine = now.around.is_some_and(|around| around.contains(whole));
        before.descriptors.contains(now.descriptors) && (before.around.is_none() || pristine)
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
            Refusal::Late => {
                let why = "another thread was still registering it when the time was over".to_owned();
                self.refusal(span, access, why)
            }
            Refusal::Overlap(other, true) => self.refusal(
                span,
                access,
                format!(
                    "{other} is registered and in use, this device supports no overlapping registrations, and other threads \
                     change memory of the same mapping without a pause, so the cache cannot tell whether that registration is \
                     still valid: repeat the request, or send from memory with its own mapping (PinnedAlloc)"
                ),
            ),
            Refusal::Overlap(other, false) => self.refusal(
                span,
                access,
                format!(
                    "{other} is registered and in use, and this device knows no overlapping registrations"
                ),
            ),
        }
    }

    pub(super) fn choose(&self, short: Short, key: u64) -> Option<u32> {
        let mut core = self.lock();
        self.idle(&mut core, |_| true).or_else(|| self.choose_with(&mut core, short, key))
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
            let bytes = core.kept[slot as usize].bytes;
            core.policy.add(slot, key_of(here.span(), here.access()), bytes, self.words.sum(slot).0);
        }
        None
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
        core.stats.bytes -= core.kept[slot as usize].bytes;
        inner.slots[slot as usize].set_state(State::Free);
        core.free.push(slot);
        inner.unlock(core);
    }
}

/// One request's place among those who wait for leases.
struct Turn<'a, R: Registrar> {
    inner: &'a Inner<R>,
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

impl<R: Registrar> Drop for Turn<'_, R> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut core = self.inner.lock();
            core.waiting.retain(|&t| t != ticket);
            self.inner.waiters.fetch_sub(1, Ordering::Relaxed);
            self.inner.unlock(core);
        }
    }
}
