//! The registration cache with a registrar that counts, and registrations with an RDMA device in a
//! virtual machine.

mod allocator;
mod batches;
mod budget;
mod busy_memory;
mod child;
mod contract;
#[cfg(feature = "cuda")]
mod cuda_driver;
mod descriptors;
mod ended_process;
mod example;
mod failing_device;
mod forks;
mod frozen;
#[cfg(feature = "cuda")]
mod gpu;
mod growing_ranges;
mod heap;
mod hit_key;
mod keep;
mod library;
mod locking;
mod model;
mod monitor_shutdown;
mod pinned;
mod races;
mod registrar_properties;
mod ring_exits;
mod ring_memory;
mod scenarios;
mod stale;
mod time_limit;
mod unsound_monitor;
mod vm;

use hostbuf_programs::memory;
use hostbuf_tests::{rounds, skip};
use std::sync::Arc;

use hostbuf::register::testing::fake::{Fake, Stamp};
use hostbuf::register::{Access, Budget, Lease, MonitorMode, Overlap, Probe, RegistrationCache, Span};

const MANY: Budget = Budget::new(1024).bytes(1 << 40);

/// Returns a new cache over a new fake.
fn cache(overlap: Overlap, budget: Budget, monitor: MonitorMode) -> (Arc<Fake>, RegistrationCache<Fake>) {
    let fake = Arc::new(Fake::new(overlap));
    let cache = RegistrationCache::new(fake.clone(), budget, monitor).expect("a budget with room");
    (fake, cache)
}

/// Returns a cache with an explicit monitor over a fake that allows overlaps.
fn explicit(budget: Budget) -> (Arc<Fake>, RegistrationCache<Fake>) {
    cache(Overlap::Free, budget, MonitorMode::Explicit)
}

type FakeCache = RegistrationCache<Fake>;

/// Returns a cache with the strict monitor, or `None` if the kernel lacks support.
fn strict() -> Option<(Arc<Fake>, RegistrationCache<Fake>)> {
    strict_with(Overlap::Free, MANY)
}

fn strict_with(overlap: Overlap, budget: Budget) -> Option<(Arc<Fake>, RegistrationCache<Fake>)> {
    match MonitorMode::probe() {
        Probe::Ready(_) => Some(cache(overlap, budget, MonitorMode::Strict)),
        Probe::Missing(why) => {
            skip(&format!("the strict monitor: {why}"));
            None
        }
    }
}

trait Stamped {
    /// Returns the number of the leased registration, after a check of the handle against the copy
    /// of its key.
    fn stamp(&self) -> Stamp;
}

impl Stamped for Lease<'_, Fake> {
    fn stamp(&self) -> Stamp {
        assert_eq!(self.handle().0, self.key(), "the key of another registration");
        *self.handle()
    }
}

/// Returns the stamp of a registration that the cache keeps. It may take several requests: if the
/// monitor gets no core in time, the cache registers for the lease only.
fn kept_one(cache: &FakeCache, start: *const u8, length: usize) -> Stamp {
    loop {
        drop(cache.get(start, length, READ).expect("a lease"));
        if let Some(lease) = cache.try_get(start, length, READ) {
            return lease.stamp();
        }
    }
}

/// Requests a registration until the cache keeps it, and returns the number of requests. Returns
/// `None` if the cache does not keep one although the monitor had a core in time.
fn requests_until_kept(cache: &FakeCache, start: *const u8, length: usize) -> Option<usize> {
    let without_core = || {
        let stats = cache.stats();
        stats.busy + stats.unproven
    };
    for requests in 1..=100 {
        let before = without_core();
        drop(cache.get(start, length, READ).ok()?);
        if cache.try_get(start, length, READ).is_some() {
            return Some(requests);
        }
        if without_core() == before {
            return None;
        }
    }
    None
}

fn span(start: usize, length: usize) -> Span {
    Span::new(start, length).expect("a range")
}

/// Returns a pointer to unmapped memory, which the fake never reads.
fn at(address: usize) -> *const u8 {
    address as *const u8
}

const READ: Access = Access::READ;
