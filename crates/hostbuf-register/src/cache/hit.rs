//! The hit path: takes and returns leases without the lock.
//!
//! A hit has three steps. It finds a slot, by the thread's hints or else by the table of ranges; it
//! counts a lease in the thread's own counter; and it checks that the slot is still what it was. A
//! thread that ends a registration does the reverse: it marks the slot and then sums the counters
//! of all threads. Each side stores before it loads, so at least one of the two sees the other.
//!
//! Watched memory takes one more check: no change has been applied since before the slot was found
//! to be live, and none is in progress.

#![allow(unsafe_code, reason = "reads the handle of a slot that a lease keeps filled")]

use super::cache_slot::CacheSlot;
use super::hints::{FoundHint, Hint};
use super::lease::Lease;
use super::lease_counts::ThreadCounts;
use super::lease_end::{after_lease_end, uncount_lease};
use super::shared::CacheShared;
use super::slot::{Observation, Slot};
use crate::monitor::DescriptorSet;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// A lease that the calling thread has counted on a slot that was live at that time. Changes of its
/// memory have not been checked.
pub(super) struct UncheckedLease<K> {
    pub(super) slot: CacheSlot,
    pub(super) seen: Observation,
    pub(super) key: K,
    /// The change sequence from before the slot was found to be live.
    pub(super) sequence: u64,
}

/// Takes a lease of an existing registration, without the lock. It waits for changes in progress.
#[inline(always)]
pub(super) fn hit<R: Registrar>(shared: &CacheShared<R>, span: Span, access: Access) -> Option<Lease<'_, R>> {
    let UncheckedLease { slot, seen, key, sequence } = count_lease(shared, span, access)?;
    if !seen.is_watched()
        || unchanged_since(shared, seen.descriptors(), sequence)
        || is_live_after_changes(shared, slot, seen.descriptors())
    {
        return Some(Lease::new(shared, slot, key));
    }
    uncount_lease(shared, slot);
    None
}

/// Takes a lease as [`hit`] does, but returns `None` if a change is in progress.
#[inline(always)]
pub(super) fn hit_without_wait<R: Registrar>(
    shared: &CacheShared<R>,
    span: Span,
    access: Access,
) -> Option<Lease<'_, R>> {
    let UncheckedLease { slot, seen, key, sequence } = count_lease(shared, span, access)?;
    if !seen.is_watched() || unchanged_since(shared, seen.descriptors(), sequence) {
        return Some(Lease::new(shared, slot, key));
    }
    uncount_lease(shared, slot);
    None
}

/// Returns whether a leased slot is live after every change in progress has been applied.
#[cold]
pub(super) fn is_live_after_changes<R: Registrar>(
    shared: &CacheShared<R>,
    slot: CacheSlot,
    descriptors: DescriptorSet,
) -> bool {
    shared.monitor.as_ref().is_some_and(|monitor| monitor.settle(descriptors)) && shared.slots[slot].is_live()
}

/// Returns a number that each change of memory watched by `descriptors` advances; 0 for memory that
/// is not watched.
#[inline(always)]
pub(super) fn sequence<R: Registrar>(shared: &CacheShared<R>, descriptors: DescriptorSet) -> u64 {
    match &shared.monitor {
        Some(monitor) if descriptors != DescriptorSet::EMPTY => monitor.sequence(descriptors),
        _ => 0,
    }
}

/// Returns whether no change of memory watched by `descriptors` is in progress, and none has been
/// applied since `before`.
#[inline(always)]
pub(super) fn unchanged_since<R: Registrar>(
    shared: &CacheShared<R>,
    descriptors: DescriptorSet,
    before: u64,
) -> bool {
    shared.monitor.as_ref().is_some_and(|monitor| monitor.unchanged_since(descriptors, before))
}

/// Counts a lease of the slot in the thread's primary hint, else of a slot that [`search`] finds.
#[inline(always)]
pub(super) fn count_lease<R: Registrar>(
    shared: &CacheShared<R>,
    span: Span,
    access: Access,
) -> Option<UncheckedLease<R::Key>> {
    if let Some(own) = shared.counts.last_used()
        && let Some((slot, seen, key)) = find_hint(shared, own, span, access)
    {
        let sequence = sequence(shared, seen.descriptors());
        own.count(slot);
        // From here on a live slot keeps its registration until the lease is returned.
        if shared.slots[slot].is_unchanged(seen) {
            return Some(UncheckedLease { slot, seen, key, sequence });
        }
        uncount_lease(shared, slot);
    }
    search(shared, span, access)
}

/// Returns the slot of the thread's primary hint for the range if the slot is still live, without
/// counting a lease.
#[inline(always)]
pub(super) fn find_hint<R: Registrar>(
    shared: &CacheShared<R>,
    own: ThreadCounts<'_, R::Key>,
    span: Span,
    access: Access,
) -> Option<(CacheSlot, Observation, R::Key)> {
    validate_hint(shared, own.primary_hint(shared.slots.page(span.start()))?, span, access)
}

/// Returns the slot of a hint if the slot is still live and the hint still valid.
#[inline(always)]
pub(super) fn validate_hint<R: Registrar>(
    shared: &CacheShared<R>,
    found: FoundHint<'_, R::Key>,
    span: Span,
    access: Access,
) -> Option<(CacheSlot, Observation, R::Key)> {
    let Hint { slot, version, key } = found.hint;
    let seen = shared.slots.get(slot)?.observe_version(span, access, version)?;
    // The hint is checked after the slot, since the version of a slot is reused after 2^24
    // registrations.
    found.is_current().then_some((slot, seen, key))
}

/// Counts a lease of a slot found by the thread's overflow hints, else by the table of ranges, and
/// stores a primary hint.
#[inline(never)]
fn search<R: Registrar>(
    shared: &CacheShared<R>,
    span: Span,
    access: Access,
) -> Option<UncheckedLease<R::Key>> {
    // A forked child finds no hints, so every request of it comes here.
    if !shared.fork_guard.is_current() {
        return None;
    }
    let own = shared.counts.of_thread()?;
    let page = shared.slots.page(span.start());
    let observe = |here: &Slot<R::Handle>| here.observe(span, access);
    let is_outdated = |other: CacheSlot, version: u32| shared.slots[other].version() != version;
    for slot in own.overflow_hints(page) {
        if let Some((seen, sequence)) = count_observed(shared, own, slot, observe) {
            let key = key(shared, slot);
            own.promote_hint(page, Hint { slot, version: seen.version(), key }, is_outdated);
            return Some(UncheckedLease { slot, seen, key, sequence });
        }
    }
    let slot = shared.slots.find(span, access)?;
    let (seen, sequence) = count_observed(shared, own, slot, observe)?;
    let key = key(shared, slot);
    own.store_hint(page, Hint { slot, version: seen.version(), key }, is_outdated, |other| {
        !shared.slots.is_on_page(other, page)
    });
    Some(UncheckedLease { slot, seen, key, sequence })
}

/// Observes a slot, counts a lease of it, and checks that the observation is still true.
#[inline(always)]
fn count_observed<R: Registrar>(
    shared: &CacheShared<R>,
    own: ThreadCounts<'_, R::Key>,
    slot: CacheSlot,
    observe: impl Fn(&Slot<R::Handle>) -> Option<Observation>,
) -> Option<(Observation, u64)> {
    let here = shared.slots.get(slot)?;
    let seen = observe(here)?;
    let sequence = sequence(shared, seen.descriptors());
    own.count(slot);
    // From here on a live slot keeps its registration until the lease is returned.
    if here.is_unchanged(seen) {
        return Some((seen, sequence));
    }
    own.uncount(slot);
    after_lease_end(shared, slot);
    None
}

/// Returns the key of a slot in which the calling thread has counted a lease.
#[inline]
pub(super) fn key<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) -> R::Key {
    // SAFETY: the calling thread has counted a lease and not returned it.
    shared.registrar.key(unsafe { shared.slots[slot].handle() })
}

/// Counts a lease of a live, covering slot. The caller holds the cache's lock. A thread without
/// counters of its own uses the shared ones.
pub(super) fn count_locked<R: Registrar>(
    shared: &CacheShared<R>,
    slot: CacheSlot,
    span: Span,
    access: Access,
) -> bool {
    let here = &shared.slots[slot];
    let Some(seen) = here.observe(span, access) else { return false };
    shared.counts.count(slot);
    // No thread changes a slot without the lock.
    debug_assert!(here.is_unchanged(seen));
    true
}
