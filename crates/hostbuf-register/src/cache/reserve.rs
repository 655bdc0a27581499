//! Reserved slots: a slot and its part of the budget are taken under the lock, and the device is
//! called without it.

#![allow(unsafe_code, reason = "writes the handle into a slot that this value has reserved")]

use super::cache_slot::CacheSlot;
use super::slot::{Slot, SlotState};
use super::slots::Slots;
use super::state_lock::{StateGuard, StateLock};
use crate::monitor::DescriptorSet;
use crate::span::{Access, Span};

/// A range that a slot is reserved for.
pub(super) struct SlotRange {
    pub(super) span: Span,
    pub(super) access: Access,
    /// The descriptors that watch the memory.
    pub(super) watched: DescriptorSet,
    /// The number of bytes that the registration takes of the budget.
    pub(super) bytes: usize,
    /// The range of the request, which may be shorter.
    pub(super) requested: Span,
}

/// A slot in the state Registering, and the proof that the calling thread has released the cache's
/// lock to get it: a system call that changes the address space must not be made with the lock.
///
/// Dropping it frees the slot and its part of the budget, so a registration that fails or panics
/// leaves nothing behind.
pub(super) struct Reserved<'a, H> {
    lock: &'a StateLock,
    slots: &'a Slots<H>,
    slot: CacheSlot,
    span: Span,
    access: Access,
}

impl<'a, H> Reserved<'a, H> {
    /// Takes a free slot for `range`, and releases the lock. Returns `None` if no slot is free.
    ///
    /// `reused` is called with the slot, and with the lock, if the versions of the slot have
    /// wrapped around.
    // Inlined, as `publish::register`: moves of the parts through memory cost as much as the rest.
    #[inline(always)]
    pub(super) fn new(
        lock: &'a StateLock,
        mut state: StateGuard<'a>,
        slots: &'a Slots<H>,
        range: &SlotRange,
        reused: impl FnOnce(CacheSlot),
    ) -> Option<Reserved<'a, H>> {
        let SlotRange { span, access, watched, bytes, requested } = *range;
        let slot = state.lists.begin_registering()?;
        state.usage.reserve(bytes);
        if slots[slot].describe(span, access, watched) == 0 {
            reused(slot);
        }
        let details = state.details(slot);
        (details.bytes, details.requested) = (bytes, Some(requested));
        drop(state);
        Some(Reserved { lock, slots, slot, span, access })
    }

    /// Returns the number of the slot.
    #[inline]
    pub(super) fn slot(&self) -> CacheSlot {
        self.slot
    }

    /// Returns the range to be registered.
    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// Returns the access to be registered.
    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// Stores the device's handle. The slot stays Registering, and its budget is no longer released
    /// by a drop.
    pub(super) fn fill(self, handle: H) {
        // SAFETY: the slot is Registering by `new`, which this thread has called, and no other
        // thread changes such a slot.
        unsafe { self.here().fill(handle) };
        std::mem::forget(self);
    }

    fn here(&self) -> &'a Slot<H> {
        &self.slots[self.slot]
    }
}

impl<H> Drop for Reserved<'_, H> {
    fn drop(&mut self) {
        let mut state = self.lock.lock();
        let bytes = state.bytes_of(self.slot);
        state.lists.end_registering(self.slot);
        state.usage.release(bytes);
        self.here().set_state(SlotState::Free);
        state.lists.add_free(self.slot);
        self.lock.unlock(state);
    }
}
