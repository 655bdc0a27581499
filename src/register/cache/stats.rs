//! What a cache has done.

/// Counters of a cache, always on; hits are read off the counts of leases, so counting them costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases that needed no registering; those that a get_many gave back, since it could not have all, among them.
    pub hits: u64,
    /// Leases that waited for another thread's registration of the same range.
    pub coalesced: u64,
    /// Registrations made for a lease.
    pub misses: u64,
    /// Bytes of all registrations ever made.
    pub registered_bytes: u64,
    /// Ended to make room.
    pub evictions: u64,
    /// Ended since `invalidate` or `flush` said so.
    pub invalidated: u64,
    /// Ended since the monitor saw their memory change.
    pub changed: u64,
    /// Registered again at once, since the memory changed meanwhile.
    pub retried: u64,
    /// Registered for their leases only, since the memory cannot be watched: files and memory of other owners that is
    /// mapped shared.
    pub unwatchable: u64,
    /// The same, since no monitor is proven, or for more than a second it could not say what is changing.
    pub unproven: u64,
    /// The same, since the kernel or the monitor's own table has no room to watch one more mapping.
    pub unwatched: u64,
    /// The same, since memory of the program was changing all the time, or pages of this range had just been given back.
    pub restless: u64,
    /// What the registrar refused.
    pub failures: u64,
    /// Deregistrations that failed: they count in the budget for ever.
    pub leaked: u64,
    /// Requests that found the budget full of leases, or were above all of it.
    pub over_budget: u64,
    /// Requests that wait for leases now.
    pub waiting: usize,
    /// Registrations now.
    pub regions: usize,
    /// Bytes registered now.
    pub bytes: usize,
    /// The most registrations at a time.
    pub peak_regions: usize,
    /// The most bytes at a time.
    pub peak_bytes: usize,
}
