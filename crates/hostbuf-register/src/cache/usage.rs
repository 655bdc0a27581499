//! The part of the budget that is in use.

use super::budget::Budget;
use super::stats::Stats;

/// The registrations and bytes of a cache, from before a registration is made until it is
/// deregistered.
pub(super) struct BudgetUsage {
    limit: Budget,
    registrations: usize,
    bytes: usize,
    peak_registrations: usize,
    peak_bytes: usize,
}

impl BudgetUsage {
    /// Makes the usage of an empty cache.
    pub(super) fn new(limit: Budget) -> BudgetUsage {
        BudgetUsage { limit, registrations: 0, bytes: 0, peak_registrations: 0, peak_bytes: 0 }
    }

    /// Returns the limit.
    #[inline]
    pub(super) fn limit(&self) -> Budget {
        self.limit
    }

    /// Returns the number of registrations.
    #[inline]
    pub(super) fn registrations(&self) -> usize {
        self.registrations
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
        self.registrations += 1;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        self.peak_registrations = self.peak_registrations.max(self.registrations);
    }

    /// Removes a registration of `bytes`.
    #[inline]
    pub(super) fn release(&mut self, bytes: usize) {
        self.registrations -= 1;
        self.bytes -= bytes;
    }

    /// Copies the figures to `stats`.
    pub(super) fn report(&self, stats: &mut Stats) {
        (stats.registrations, stats.bytes) = (self.registrations, self.bytes);
        (stats.peak_registrations, stats.peak_bytes) = (self.peak_registrations, self.peak_bytes);
    }
}
