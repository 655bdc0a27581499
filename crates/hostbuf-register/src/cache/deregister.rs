//! The end of registrations: to make room, because their memory changes, or with their last lease.

#![allow(unsafe_code, reason = "takes the handle out of a slot")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::cache_slot::CacheSlot;
use super::eviction::Shortage;
use super::shared::CacheShared;
use super::slot::{Slot, SlotState};
use super::slot_details::Leak;
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::registrar::Registrar;
use crate::span::Span;

/// Deregisters a slot that this thread has made Deregistering. Its part of the budget is free once
/// the device has succeeded.
pub(super) fn deregister<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) -> Result<()> {
    let mut deregistering = DeregisteringSlot { shared, slot, done: false, why: None };
    let here = &shared.slots[slot];
    // SAFETY: the slot is Deregistering by this thread.
    let handle = unsafe { here.empty() };
    let Some(handle) = handle else {
        deregistering.done = true;
        return Ok(());
    };
    // The caller may be a drop or the reaper, where a panic must not go on.
    let asked = catch_unwind(AssertUnwindSafe(|| shared.registrar.deregister(here.span(), handle)));
    let result = asked.unwrap_or_else(|_| {
        let (device, why) = (shared.registrar.name(), PANICKED.into());
        let (memory, access) = (here.span().into(), here.access());
        Err(Error::Registration { device, memory, access, why, source: None })
    });
    deregistering.done = result.is_ok();
    deregistering.why = result.as_ref().err().map(reason);
    result
}

/// The reason of a deregistration that has failed without an error.
const PANICKED: &str = "deregistering it panicked";

/// Deregisters a slot as [`deregister`] does, where no caller gets the error: it is logged and
/// counted.
pub(super) fn deregister_or_log<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) {
    if let Err(error) = deregister(shared, slot) {
        tracing::error!(%error, "a deregistration has failed");
    }
}

/// Deregisters everything that is stale and not leased.
///
/// # Errors
/// The first error of the device.
pub(super) fn deregister_stale<R: Registrar>(shared: &CacheShared<R>) -> Result<()> {
    let mut result = Ok(());
    loop {
        let unused = shared.lock().claim_unused(&shared.slots, &shared.counts, |_| true);
        let Some(slot) = unused else { return result };
        result = result.and(deregister(shared, slot));
    }
}

/// Deregisters a slot if it is stale and not leased.
#[cold]
pub(super) fn deregister_if_unused<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) {
    let claimed = shared.lock().claim_if_unused(&shared.slots, &shared.counts, slot);
    if claimed {
        deregister_or_log(shared, slot);
    }
}

/// Selects a registration to be ended, which is stale or the one that the policy evicts, and makes
/// its slot Deregistering.
pub(super) fn select<R: Registrar>(
    shared: &CacheShared<R>,
    shortage: Shortage,
    key: u64,
) -> Option<CacheSlot> {
    let (slots, counts) = (&shared.slots, &shared.counts);
    let mut state = shared.lock();
    state.claim_unused(slots, counts, |_| true).or_else(|| state.evict(slots, counts, shortage, key))
}

/// Makes all registrations of `span` stale, and counts each by `cause`. [`deregister_stale`] ends
/// them.
pub(super) fn make_stale<R: Registrar>(
    shared: &CacheShared<R>,
    span: Span,
    cause: impl Fn(&mut Stats) -> &mut u64,
) {
    shared.lock().make_stale(&shared.slots, span, |_| true, cause);
}

/// Waits for the deregistrations of memory in `span` that are in progress. Later ones may follow
/// without end, so they are not waited for.
pub(super) fn wait_for_deregistrations<R: Registrar>(shared: &CacheShared<R>, span: Span) {
    let mut state = shared.lock();
    let last = state.lists.deregistrations_begun();
    let is_awaited =
        |&(slot, number): &(CacheSlot, u64)| number <= last && shared.slots[slot].span().overlaps(span);
    while state.lists.deregistering().iter().any(is_awaited) {
        state = shared.state.wait(state, None);
    }
}

/// Returns the first failure to deregister memory of `span` after the first `leaked` failures of
/// this cache, whichever thread met it. Another thread may have taken over a registration that this
/// one has made stale: the reaper, a miss that wants room, or the thread that drops the last lease.
///
/// # Errors
/// [`Error::Registration`] with the device's answer.
pub(super) fn check_leaks<R: Registrar>(shared: &CacheShared<R>, span: Span, leaked: u64) -> Result<()> {
    let state = shared.lock();
    if state.stats.leaked == leaked {
        return Ok(());
    }
    let leaks = shared.slots.iter().zip(&state.details).filter_map(|(here, details)| {
        let leak = details.leak.as_ref().filter(|leak| leak.number > leaked && here.span().overlaps(span))?;
        Some((here, leak))
    });
    let first = leaks.min_by_key(|(_, leak)| leak.number);
    let Some((span, access, why)) = first.map(|(here, leak)| (here.span(), here.access(), leak.why.clone()))
    else {
        return Ok(());
    };
    // The error is made without the lock, since it allocates.
    drop(state);
    let device = shared.registrar.name();
    let why = why.as_deref().unwrap_or(PANICKED).to_owned();
    Err(Error::Registration { device, memory: span.into(), access, why, source: None })
}

/// Retains the memory of registrations that leases hold which the program has forgotten.
pub(super) fn retain_forgotten_memory<R: Registrar>(shared: &CacheShared<R>) {
    let mut state = shared.lock();
    for (slot, here) in CacheSlot::all().zip(shared.slots.iter()) {
        if here.state() != SlotState::Free {
            std::mem::forget(state.details(slot).memory.take());
        }
    }
}

/// Returns why a deregistration failed, without the device and the range.
fn reason(error: &Error) -> Arc<str> {
    match error {
        Error::Registration { why, source: Some(source), .. } => format!("{why}: {source}").into(),
        Error::Registration { why, source: None, .. } => why.as_str().into(),
        other => other.to_string().into(),
    }
}

/// A slot that this thread deregisters. Dropping it frees the slot if the device has succeeded, and
/// otherwise makes the slot Leaked.
struct DeregisteringSlot<'a, R: Registrar> {
    shared: &'a CacheShared<R>,
    slot: CacheSlot,
    done: bool,
    /// The device's answer if it has failed.
    why: Option<Arc<str>>,
}

impl<R: Registrar> DeregisteringSlot<'_, R> {
    fn here(&self) -> &Slot<R::Handle> {
        &self.shared.slots[self.slot]
    }
}

impl<R: Registrar> Drop for DeregisteringSlot<'_, R> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(memory) = state.details(self.slot).memory.take() {
            // The memory is dropped without the lock, since it may be unmapped, and before this
            // deregistration counts as done, so that a thread that waits for it finds the memory
            // gone. It is retained where the device may still use it.
            drop(state);
            match self.done {
                true => drop(memory),
                false => std::mem::forget(memory),
            }
            state = self.shared.lock();
        }
        state.lists.end_deregistering(self.slot);
        if self.done {
            let bytes = state.bytes_of(self.slot);
            state.usage.release(bytes);
            self.here().set_state(SlotState::Free);
            state.lists.add_free(self.slot);
        } else {
            self.here().set_state(SlotState::Leaked);
            state.stats.leaked += 1;
            let number = state.stats.leaked;
            state.details(self.slot).leak = Some(Leak { number, why: self.why.take() });
        }
        self.shared.state.unlock(state);
    }
}
