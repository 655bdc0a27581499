//! The part of the budget that is in use.

use super::budget::Budget;
use super::stats::Stats;

/// The registrations and bytes of a cache, from before a registration is made until it is
/// deregistered.
pub(super) struct BudgetUsage {
    limit: Budget,
    regions: usize,
    bytes: usize,
    peak_regions: usize,
    peak_bytes: usize,
}

impl BudgetUsage {
    /// Makes the usage of an empty cache.
    pub(super) fn new(limit: Budget) -> BudgetUsage {
        BudgetUsage { limit, regions: 0, bytes: 0, peak_regions: 0, peak_bytes: 0 }
    }

    /// Returns the limit.
    #[inline]
    pub(super) fn limit(&self) -> Budget {
        self.limit
    }

    /// Returns the number of registrations.
    #[inline]
    pub(super) fn regions(&self) -> usize {
        self.regions
    }

    /// Returns the number of bytes of all registrations.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes that are not in use.
    #[inline]
    pub(super) fn bytes_left(&self) -> usize {
        self.limit.bytes.saturating_sub(self.bytes)
    }

    /// Adds a registration of `bytes`.
    #[inline]
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.regions += 1;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        self.peak_regions = self.peak_regions.max(self.regions);
    }

    /// Removes a registration of `bytes`.
    #[inline]
    pub(super) fn release(&mut self, bytes: usize) {
        self.regions -= 1;
        self.bytes -= bytes;
    }

    /// Copies the figures to `stats`.
    pub(super) fn report(&self, stats: &mut Stats) {
        (stats.regions, stats.bytes) = (self.regions, self.bytes);
        (stats.peak_regions, stats.peak_bytes) = (self.peak_regions, self.peak_bytes);
    }
}
