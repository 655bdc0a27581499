//! The slots of a cache by state. A live slot is in none of the lists: the table of ranges has it.

use super::cache_slot::CacheSlot;

/// The slots that are not live, by state. Nothing here allocates after construction.
pub(super) struct SlotLists {
    free: Vec<CacheSlot>,
    registering: Vec<CacheSlot>,
    /// The registering slots whose memory has changed meanwhile.
    tainted: Vec<CacheSlot>,
    stale: Vec<CacheSlot>,
    /// Slots that a thread is deregistering without the lock, with their numbers in the order of
    /// the beginnings.
    deregistering: Vec<(CacheSlot, u64)>,
    /// The number of deregistrations that have begun.
    begun: u64,
}

impl SlotLists {
    /// Makes the lists of `slots` free slots.
    pub(super) fn new(slots: usize) -> SlotLists {
        let list = || Vec::with_capacity(slots);
        SlotLists {
            free: (0..slots).rev().map(CacheSlot::from_index).collect(),
            registering: list(),
            tainted: list(),
            stale: list(),
            deregistering: Vec::with_capacity(slots),
            begun: 0,
        }
    }

    /// Returns whether a slot is free.
    #[inline]
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Moves a free slot to the registering ones, if there is one.
    #[inline]
    pub(super) fn begin_registering(&mut self) -> Option<CacheSlot> {
        let slot = self.free.pop()?;
        self.registering.push(slot);
        Some(slot)
    }

    /// Removes a slot from the registering ones. Returns whether its memory has changed meanwhile.
    #[inline]
    pub(super) fn end_registering(&mut self, slot: CacheSlot) -> bool {
        self.registering.retain(|&other| other != slot);
        let tainted = self.tainted.iter().position(|&other| other == slot);
        tainted.map(|at| self.tainted.swap_remove(at)).is_some()
    }

    /// Returns whether `wanted` accepts a registering slot whose memory has not changed.
    pub(super) fn any_registering(&self, wanted: impl Fn(CacheSlot) -> bool) -> bool {
        self.registering.iter().any(|&slot| wanted(slot) && !self.tainted.contains(&slot))
    }

    /// Records that the memory of those registering slots has changed that `changed` accepts.
    pub(super) fn taint(&mut self, changed: impl Fn(CacheSlot) -> bool) {
        for &slot in &self.registering {
            if changed(slot) && !self.tainted.contains(&slot) {
                self.tainted.push(slot);
            }
        }
    }

    /// Adds a slot to the stale ones.
    #[inline]
    pub(super) fn add_stale(&mut self, slot: CacheSlot) {
        self.stale.push(slot);
    }

    /// Removes the first stale slot that `wanted` accepts.
    pub(super) fn take_stale(&mut self, wanted: impl Fn(CacheSlot) -> bool) -> Option<CacheSlot> {
        let at = self.stale.iter().position(|&slot| wanted(slot))?;
        Some(self.stale.swap_remove(at))
    }

    /// Returns the stale slots.
    #[inline]
    pub(super) fn stale(&self) -> &[CacheSlot] {
        &self.stale
    }

    /// Adds a slot to the deregistering ones.
    #[inline]
    pub(super) fn begin_deregistering(&mut self, slot: CacheSlot) {
        self.begun += 1;
        self.deregistering.push((slot, self.begun));
    }

    /// Removes a slot from the deregistering ones.
    #[inline]
    pub(super) fn end_deregistering(&mut self, slot: CacheSlot) {
        self.deregistering.retain(|&(other, _)| other != slot);
    }

    /// Returns the deregistering slots, with their numbers in the order of the beginnings.
    #[inline]
    pub(super) fn deregistering(&self) -> &[(CacheSlot, u64)] {
        &self.deregistering
    }

    /// Returns the number of deregistrations that have begun.
    #[inline]
    pub(super) fn deregistrations_begun(&self) -> u64 {
        self.begun
    }

    /// Adds a slot to the free ones.
    #[inline]
    pub(super) fn add_free(&mut self, slot: CacheSlot) {
        self.free.push(slot);
    }

    /// Returns whether slots are being registered or deregistered.
    #[inline]
    pub(super) fn is_in_progress(&self) -> bool {
        !self.deregistering.is_empty() || !self.registering.is_empty()
    }

    /// Returns the slots that the table of ranges lacks and that the device may have registered.
    #[inline]
    pub(super) fn unlisted(&self) -> impl Iterator<Item = CacheSlot> {
        let deregistering = self.deregistering.iter().map(|&(slot, _)| slot);
        self.registering.iter().chain(&self.stale).copied().chain(deregistering)
    }
}
