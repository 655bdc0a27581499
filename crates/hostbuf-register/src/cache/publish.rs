//! Registers a reserved range with the device, and makes the registration live.

use super::cache_slot::CacheSlot;
use super::deregister::deregister_or_log;
use super::eviction::key_of;
use super::origin::MemoryOrigin;
use super::reserve::Reserved;
use super::shared::CacheShared;
use super::slot::SlotState;
use crate::error::Result;
use crate::monitor::{Unwatched, Watched};
use crate::own_ranges;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// The outcome of a registration.
pub(super) enum RegisterOutcome {
    /// The range is registered, and a lease of the calling thread is counted.
    Registered,
    /// The memory has changed meanwhile, and nothing is registered.
    Changed,
    /// The range exceeds the request and the mapping of the request, and the device was not called.
    TooWide,
}

/// Registers a reserved range for a request of `requested`.
///
/// # Errors
/// [`Error::Freeze`](crate::Error::Freeze) if the range is frozen; the error of the device.
#[inline(always)]
pub(super) fn register<R: Registrar>(
    shared: &CacheShared<R>,
    reserved: Reserved<'_, R::Handle>,
    requested: Span,
    origin: MemoryOrigin,
) -> Result<RegisterOutcome> {
    let whole = reserved.span();
    if reserved.access().writes() {
        // The check follows the reservation: freezing first marks the range, and then looks for
        // registrations in progress.
        own_ranges::may_write(whole)?;
    }
    if let MemoryOrigin::Watched(watched) = origin {
        // A change before the reservation has tainted no slot, so the memory must still be watched.
        if !is_still_watched(shared, whole, watched) {
            return Ok(RegisterOutcome::Changed);
        }
        // One watched range may be several mappings, of which one may be read-only.
        let is_one = || shared.monitor.as_ref().is_some_and(|monitor| monitor.is_one_mapping(whole));
        if whole != requested && !is_one() {
            return Ok(RegisterOutcome::TooWide);
        }
    }
    let handle = shared.registrar.register(&reserved)?;
    let (slot, access) = (reserved.slot(), reserved.access());
    reserved.fill(handle);
    Ok(publish(shared, slot, whole, access, origin))
}

/// Returns whether the same descriptors still watch all of a range and, if the range may exceed the
/// request, no page of its mapping has been discarded.
fn is_still_watched<R: Registrar>(shared: &CacheShared<R>, whole: Span, before: Watched) -> bool {
    let Some(now) = shared.monitor.as_ref().and_then(|monitor| monitor.watch(whole).ok()) else {
        return false;
    };
    let is_pristine = now.around.is_some_and(|around| around.contains(whole));
    before.descriptors.contains(now.descriptors) && (before.around.is_none() || is_pristine)
}

/// Makes a filled slot live, or stale if changes of its memory are not reported, and counts a
/// lease. If the memory has changed, the slot is deregistered instead.
#[inline(always)]
fn publish<R: Registrar>(
    shared: &CacheShared<R>,
    slot: CacheSlot,
    whole: Span,
    access: Access,
    origin: MemoryOrigin,
) -> RegisterOutcome {
    let (slots, counts) = (&shared.slots, &shared.counts);
    let here = &slots[slot];
    let is_watched = matches!(origin, MemoryOrigin::Watched(_));
    let (memory, unwatched) = match origin {
        MemoryOrigin::Own(memory, _) => (Some(memory), None),
        MemoryOrigin::Unwatched(why) => (None, Some(why)),
        MemoryOrigin::Explicit | MemoryOrigin::Watched(_) => (None, None),
    };
    // Changes that began before the device had finished are applied now: those of this range have
    // tainted the slot.
    let is_settled =
        !is_watched || shared.monitor.as_ref().is_some_and(|monitor| monitor.settle(here.descriptors()));
    // Without an end of the changes the registration serves this lease only.
    let unwatched = unwatched.or((!is_settled).then_some(Unwatched::Busy));
    let mut state = shared.lock();
    let tainted = state.lists.end_registering(slot);
    state.stats.registered_bytes += whole.len() as u64;
    state.details(slot).memory = memory;
    if tainted {
        state.stats.retried += 1;
        state.begin_deregistering(slots, slot);
        drop(state);
        deregister_or_log(shared, slot);
        return RegisterOutcome::Changed;
    }
    state.stats.misses += 1;
    counts.count(slot);
    match unwatched {
        Some(why) => {
            let counter = match why {
                Unwatched::Memory => &mut state.stats.unwatchable,
                Unwatched::Unproven => &mut state.stats.unproven,
                Unwatched::Full => &mut state.stats.unwatched,
                Unwatched::Busy => &mut state.stats.busy,
            };
            *counter += 1;
            here.set_state(SlotState::Stale);
            state.lists.add_stale(slot);
        }
        None => {
            slots.publish(slot, whole);
            state.add_to_policy(counts, slot, key_of(whole, access));
        }
    }
    shared.state.unlock(state);
    RegisterOutcome::Registered
}
