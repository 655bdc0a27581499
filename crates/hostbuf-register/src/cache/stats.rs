//! The statistics of a cache.

/// The counters of a cache. They are always on: hits are derived from the lease counts, so counting
/// them costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases that needed no registration, including those that a failed `get_many` returned.
    pub hits: u64,
    /// Leases that waited for another thread's registration of the same range.
    pub coalesced: u64,
    /// Registrations made for a lease.
    pub misses: u64,
    /// Bytes of all registrations ever made.
    pub registered_bytes: u64,
    /// Registrations ended to make room.
    pub evictions: u64,
    /// Registrations ended by `invalidate` or `flush`.
    pub invalidated: u64,
    /// Registrations ended because the monitor reported a change of their memory.
    pub changed: u64,
    /// Registrations repeated at once because the memory changed meanwhile.
    pub retried: u64,
    /// Registrations for one lease only because the memory cannot be watched: files, and shared
    /// memory of other owners.
    pub unwatchable: u64,
    /// Registrations for one lease only because there is no working monitor, the kernel has
    /// reported a change without an event for more than a second, or the thread lacks the monitor's
    /// descriptors.
    pub unproven: u64,
    /// Registrations for one lease only because the kernel or the monitor's table has no room to
    /// watch another mapping.
    pub unwatched: u64,
    /// Registrations for one lease only because the program's memory was changing without a pause,
    /// or pages of the range were being discarded.
    pub busy: u64,
    /// Registrations that the registrar refused.
    pub failures: u64,
    /// Deregistrations that failed. They count in the budget for ever.
    pub leaked: u64,
    /// Requests that failed because the whole budget was leased, or because they exceed it.
    pub over_budget: u64,
    /// The number of requests that are waiting for leases.
    pub waiting: usize,
    /// The current number of registrations.
    pub registrations: usize,
    /// The current number of registered bytes.
    pub bytes: usize,
    /// The largest number of registrations at a time.
    pub peak_registrations: usize,
    /// The largest number of registered bytes at a time.
    pub peak_bytes: usize,
}
