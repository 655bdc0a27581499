//! The hold that users have on a registration.

#![allow(unsafe_code, reason = "reads the handle of a slot that a lease keeps filled")]

use std::fmt;
use std::mem::ManuallyDrop;

use super::cache_slot::CacheSlot;
use super::lease_end::return_lease;
use super::shared::CacheShared;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// A hold on a registration, which lives at least as long as the lease, whatever happens to its
/// memory.
///
/// Another thread than the one that took it may drop it. It is not `Clone`: request another lease
/// from the cache, since a hit costs almost nothing.
pub struct Lease<'c, R: Registrar> {
    shared: &'c CacheShared<R>,
    slot: CacheSlot,
    key: R::Key,
}

impl<'c, R: Registrar> Lease<'c, R> {
    /// Makes the lease that the calling thread has counted on a slot with this key.
    #[inline(always)]
    pub(super) fn new(shared: &'c CacheShared<R>, slot: CacheSlot, key: R::Key) -> Lease<'c, R> {
        Lease { shared, slot, key }
    }

    /// Returns the number of the slot.
    #[inline(always)]
    pub(super) fn slot(&self) -> CacheSlot {
        self.slot
    }

    /// Returns the number of the slot, and leaves the lease counted.
    pub(super) fn into_slot(self) -> CacheSlot {
        ManuallyDrop::new(self).slot
    }

    /// Returns the key (lkey and rkey, or device address). The lease holds a copy, so no shared
    /// cache line is touched.
    #[must_use]
    #[inline]
    pub fn key(&self) -> R::Key {
        self.key
    }

    /// Returns the device's whole handle.
    #[must_use]
    #[inline]
    pub fn handle(&self) -> &R::Handle {
        // SAFETY: this lease is counted, so the slot keeps its registration.
        unsafe { self.shared.slots[self.slot].handle() }
    }

    /// Returns the registered range, which may be longer than the request.
    #[must_use]
    pub fn span(&self) -> Span {
        self.shared.slots[self.slot].span()
    }

    /// Returns the access that the device has.
    #[must_use]
    pub fn access(&self) -> Access {
        self.shared.slots[self.slot].access()
    }
}

impl<R: Registrar> Drop for Lease<'_, R> {
    #[inline(always)]
    fn drop(&mut self) {
        return_lease(self.shared, self.slot);
    }
}

impl<R: Registrar> fmt::Debug for Lease<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}, {})", self.span(), self.access())
    }
}
