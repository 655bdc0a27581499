//! The number of leases ever counted.

use super::cache_slot::CacheSlot;

/// The number of leases of all slots, from which hits are derived. The counts of a slot have 32
/// bits, so they are added up before they can wrap around.
pub(super) struct LeaseTotals {
    total: u64,
    /// The count of each slot that `total` contains.
    folded: Vec<u32>,
}

impl LeaseTotals {
    /// Makes the totals of `slots` slots without leases.
    pub(super) fn new(slots: usize) -> LeaseTotals {
        LeaseTotals { total: 0, folded: vec![0; slots] }
    }

    /// Adds the leases counted since the last call. `counted` returns the count of a slot, modulo
    /// 2^32.
    pub(super) fn fold(&mut self, counted: impl Fn(CacheSlot) -> u32) {
        for (slot, folded) in self.folded.iter_mut().enumerate() {
            let now = counted(CacheSlot::from_index(slot));
            let (more, less) = (now.wrapping_sub(*folded), folded.wrapping_sub(now));
            // A few leases may have been counted at the last call and uncounted since.
            self.total = match less < 1 << 16 {
                true => self.total.saturating_sub(less.into()),
                false => self.total + u64::from(more),
            };
            *folded = now;
        }
    }

    /// Returns the number of leases ever counted, up to the last call of
    /// [`fold`](LeaseTotals::fold).
    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}
