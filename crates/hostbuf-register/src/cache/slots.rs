//! The registrations of a cache, and the table that finds them by address.

use std::io;
use std::ops::Index;

use super::cache_slot::CacheSlot;
use super::range_table::{Lookup, RangeTable};
use super::slot::{Slot, SlotState};
use crate::span::{Access, Span};
use hostbuf_os::array::Array;
use hostbuf_os::memory;

/// All slots of a cache, with the table of the live ones.
pub(super) struct Slots<H> {
    slots: Array<Slot<H>>,
    table: RangeTable,
    page_shift: u32,
}

impl<H> Slots<H> {
    /// Makes `count` free slots.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(count: usize) -> io::Result<Slots<H>> {
        let slots = Array::new(count, |_| Slot::new())?;
        Ok(Slots { slots, table: RangeTable::new(count), page_shift: memory::page_size().trailing_zeros() })
    }

    /// Returns a slot, or `None` for a number that no slot has.
    #[inline(always)]
    pub(super) fn get(&self, slot: CacheSlot) -> Option<&Slot<H>> {
        self.slots.get(slot.index())
    }

    /// Returns all slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<H>> {
        self.slots.iter()
    }

    /// Returns the number of the page that contains `address`.
    #[inline(always)]
    pub(super) fn page(&self, address: usize) -> usize {
        address >> self.page_shift
    }

    /// Returns whether the range of a slot contains a byte of the page `page`.
    pub(super) fn is_on_page(&self, slot: CacheSlot, page: usize) -> bool {
        let span = self[slot].span();
        self.page(span.start()) <= page && page <= self.page(span.end() - 1)
    }

    /// Finds a live slot that covers a request, without the lock.
    pub(super) fn find(&self, span: Span, access: Access) -> Option<CacheSlot> {
        match self.table.find(span, |slot| self[slot].covers(span, access)) {
            Lookup::Slot(slot) => Some(slot),
            Lookup::Nothing | Lookup::Changed => None,
        }
    }

    /// Finds a live slot that covers a request. The caller holds the cache's lock.
    pub(super) fn find_locked(&self, span: Span, access: Access) -> Option<CacheSlot> {
        self.table.find_locked(span, &|slot| self[slot].covers(span, access))
    }

    /// Passes each live slot that overlaps `span`. The caller holds the cache's lock.
    pub(super) fn overlapping(&self, span: Span, each: impl FnMut(CacheSlot)) {
        self.table.overlapping(span, each);
    }

    /// Finds a live slot that overlaps `span` and that `wanted` accepts. The caller holds the
    /// cache's lock.
    pub(super) fn find_overlapping(
        &self,
        span: Span,
        wanted: impl FnMut(CacheSlot) -> bool,
    ) -> Option<CacheSlot> {
        self.table.find_overlapping(span, wanted)
    }

    /// Makes a slot live, whose registered range is `span`. The caller holds the cache's lock.
    pub(super) fn publish(&self, slot: CacheSlot, span: Span) {
        self[slot].set_state(SlotState::Live);
        self.table.insert(span, slot);
    }

    /// Removes a slot that is no longer live from the table. The caller holds the cache's lock.
    pub(super) fn unpublish(&self, slot: CacheSlot) {
        self.table.remove(self[slot].span(), slot);
    }
}

impl<H> Index<CacheSlot> for Slots<H> {
    type Output = Slot<H>;

    #[inline(always)]
    fn index(&self, slot: CacheSlot) -> &Slot<H> {
        &self.slots[slot.index()]
    }
}
