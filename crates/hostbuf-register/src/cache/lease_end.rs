//! The end of a lease: without the lock, unless its slot is stale or a request waits for it.

use std::sync::atomic::Ordering;

use super::cache_slot::CacheSlot;
use super::deregister::deregister_if_unused;
use super::shared::CacheShared;
use crate::registrar::Registrar;

/// Returns a lease. In a forked child it changes only memory of the child.
#[inline(always)]
pub(super) fn return_lease<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) {
    let Some(own) = shared.counts.last_used() else { return return_lease_slowly(shared, slot) };
    own.count_return(slot);
    after_lease_end(shared, slot);
}

#[cold]
fn return_lease_slowly<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) {
    if shared.fork_guard.is_current() {
        shared.counts.count_return(slot);
        handle_lease_end(shared, slot);
    }
}

/// Undoes the counting of a lease that is not handed out.
#[cold]
pub(super) fn uncount_lease<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) {
    shared.counts.uncount(slot);
    after_lease_end(shared, slot);
}

/// Handles the end of a lease if a request waits for it, or if its slot is stale.
#[inline(always)]
pub(super) fn after_lease_end<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) {
    if shared.slots[slot].is_stale() || shared.waiters.load(Ordering::Relaxed) > 0 {
        handle_lease_end(shared, slot);
    }
}

/// Deregisters a stale slot after its last lease, and wakes waiting requests.
#[cold]
fn handle_lease_end<R: Registrar>(shared: &CacheShared<R>, slot: CacheSlot) {
    if !shared.fork_guard.is_current() {
        return;
    }
    if shared.slots[slot].is_stale() {
        deregister_if_unused(shared, slot);
    }
    if shared.waiters.load(Ordering::Relaxed) > 0 {
        shared.state.wake_requests();
    }
}
