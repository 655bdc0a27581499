//! The number of a slot.

/// The number of a slot of a cache, counted from 0. It distinguishes slots from versions, counts of
/// leases and positions in tables, which are integers too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(super) struct CacheSlot(u32);

impl CacheSlot {
    /// Makes the slot with this number.
    #[inline]
    pub(super) const fn new(number: u32) -> CacheSlot {
        CacheSlot(number)
    }

    /// Makes the slot at this position of an array with an element for each slot.
    #[inline]
    pub(super) const fn from_index(index: usize) -> CacheSlot {
        CacheSlot(index as u32)
    }

    /// Returns the number, as it is stored in atomics.
    #[inline]
    pub(super) const fn number(self) -> u32 {
        self.0
    }

    /// Returns the position in an array with an element for each slot.
    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns all numbers of slots in ascending order.
    #[inline]
    pub(super) fn all() -> impl Iterator<Item = CacheSlot> {
        (0..).map(CacheSlot)
    }
}
