//! The budget: it is never exceeded, and requests wait for it in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hostbuf::job::Solo;
use hostbuf::register::Error;
use hostbuf::register::testing::fake::{Fake, Stamp};
use hostbuf::register::{
    Access, Budget, Lease, Memory, MonitorMode, Overlap, Registrar, RegistrarProperties, RegistrationCache,
    Span, Stats,
};
use hostbuf::{BufferOptions, HostBuffer, Pages};

use crate::memory::PAGE;
use crate::{FakeCache, MANY, READ, Stamped, at, explicit, span};

const TWO: Budget = Budget::new(2).bytes(1 << 30);

#[test]
fn a_request_beyond_the_unleased_budget_fails_at_once() {
    let (fake, cache) = explicit(Budget::new(2).bytes(100));
    let leases = [cache.get(at(0x1000), 10, READ).unwrap(), cache.get(at(0x2000), 10, READ).unwrap()];
    let begun = Instant::now();
    let full = cache.get(at(0x3000), 10, READ).unwrap_err();
    assert!(matches!(full, Error::Budget { leased: true, registrations: (2, 2), .. }), "{full:?}");
    let large = cache.get(at(0x3000), 101, READ).unwrap_err();
    assert!(matches!(large, Error::Budget { leased: false, .. }), "{large:?}");
    assert!(large.to_string().contains("HOSTBUF_CACHE_BYTES"), "{large}");
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!((fake.made(), cache.stats().over_budget), (2, 2));
    drop(leases);
    cache.get(at(0x3000), 10, READ).unwrap();
}

#[test]
fn an_invalidated_leased_registration_counts_in_the_budget() {
    let (fake, cache) = explicit(TWO);
    let old = cache.get(at(0x1000), 10, READ).unwrap();
    cache.invalidate(span(0x1000, 10)).unwrap();
    let fresh = cache.get(at(0x1000), 10, READ).unwrap();
    assert_ne!(old.stamp(), fresh.stamp());
    assert!(matches!(cache.get(at(0x2000), 10, READ), Err(Error::Budget { .. })));
    assert_eq!(fake.peak().0, 2);
    drop(old);
    cache.get(at(0x2000), 10, READ).unwrap();
    assert_eq!(fake.peak().0, 2);
}

fn much(stats: &Stats) -> bool {
    stats.evictions > 100 && stats.hits > 1000 && stats.invalidated > 10
}

/// Several threads get, drop, evict and invalidate for a second: the device never has more than the
/// budget, and every lease is counted once.
#[test]
fn threads_stay_within_the_budget_and_every_lease_is_counted() {
    for budget in [Budget::new(4).bytes(3 * PAGE), MANY.registrations(3), Budget::new(64).bytes(40 * PAGE)] {
        let (fake, cache) = explicit(budget);
        let mut taken = 0;
        // On a busy machine the measurement is repeated.
        while !much(&cache.stats()) {
            let until = Instant::now() + Duration::from_millis(400);
            taken += std::thread::scope(|scope| {
                let cache = &cache;
                let threads: Vec<_> =
                    (0..4).map(|seed| scope.spawn(move || requests(cache, seed, until))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
            });
        }
        let (peak, stats) = (fake.peak(), cache.stats());
        assert!(peak.0 <= budget.registrations && peak.1 <= budget.bytes, "{peak:?} of {budget:?}");
        assert_eq!((stats.peak_registrations, stats.peak_bytes), peak);
        assert_eq!((stats.hits + stats.misses + stats.coalesced, stats.leaked), (taken, 0), "{stats:?}");
        assert_eq!(stats.misses + stats.retried, fake.made() as u64);
        assert_eq!(fake.live().len(), stats.registrations);
        drop(cache);
        assert_eq!((fake.live().len(), fake.ended().len()), (0, fake.made()));
    }
}

/// Requests and drops leases in one thread until `until`, and returns the number of leases.
fn requests(cache: &FakeCache, seed: u64, until: Instant) -> u64 {
    let mut n = seed * 7919 + 1;
    let (mut held, mut taken) = (Vec::new(), 0);
    while Instant::now() < until {
        n ^= n << 13;
        n ^= n >> 7;
        n ^= n << 17;
        // A few pages are requested often, and many seldom.
        let page = if n.is_multiple_of(4) { n >> 8 & 127 } else { n >> 8 & 3 } as usize;
        let start = at(0x10_0000 + page * PAGE);
        let lease = match n % 7 {
            0 => cache.try_get(start, PAGE, READ),
            1 => cache.get_timeout(start, PAGE, READ, Duration::from_micros(n >> 16 & 255)).ok(),
            _ => match cache.get(start, PAGE, READ) {
                Ok(lease) => Some(lease),
                Err(Error::Budget { leased: true, .. }) => None,
                Err(error) => panic!("{error}"),
            },
        };
        if let Some(lease) = lease {
            assert!(lease.span().contains(span(start as usize, PAGE)), "{lease:?}");
            taken += 1;
            if n.is_multiple_of(3) && held.is_empty() {
                held.push(lease);
            }
        }
        if n.is_multiple_of(5) {
            held.clear();
        }
        if n.is_multiple_of(64) {
            cache.invalidate(span(start as usize, 2 * PAGE)).unwrap();
        }
    }
    taken
}

#[test]
fn waiting_requests_are_served_in_order() {
    let (_, cache) = explicit(MANY.registrations(1));
    let held = cache.get(at(0x1000), 8, READ).unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for n in 1..=4usize {
            let (cache, order) = (&cache, &order);
            scope.spawn(move || {
                let lease = cache
                    .get_timeout(at(0x10_0000 * n), 8, READ, Duration::from_secs(30))
                    .expect("its turn comes");
                order.lock().unwrap().push(n);
                drop(lease);
            });
            // The request is in the queue before the next one comes.
            let begun = Instant::now();
            while cache.stats().waiting < n {
                assert!(begun.elapsed() < Duration::from_secs(10));
                std::thread::yield_now();
            }
        }
        drop(held);
    });
    assert_eq!(*order.lock().unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_request_that_times_out_lets_the_next_one_proceed() {
    let (_, cache) = explicit(MANY.registrations(1));
    let held = cache.get(at(0x1000), 8, READ).unwrap();
    let begun = Instant::now();
    let error = cache.get_timeout(at(0x2000), 8, READ, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::Budget { leased: true, .. }));
    assert!(begun.elapsed() >= Duration::from_millis(50) && begun.elapsed() < Duration::from_secs(5));
    drop(held);
    cache.get_timeout(at(0x2000), 8, READ, Duration::ZERO).unwrap();
}

#[test]
fn get_many_is_all_or_nothing() {
    let (fake, cache) = explicit(MANY.registrations(4));
    let spans: Vec<_> = (1..=6).map(|n| span(n * PAGE, 64)).collect();
    assert!(matches!(cache.get_many(&spans, READ), Err(Error::Budget { .. })));
    // Nothing of the range is leased.
    let four = cache.get_many(&spans[2..], READ).unwrap();
    assert_eq!(four.len(), 4);
    drop(four);
    let mut again: Vec<Lease<'_, _>> = Vec::new();
    let made = fake.made();
    cache.get_many_into(&spans[2..], READ, &mut again).unwrap();
    assert_eq!((again.len(), fake.made()), (4, made));
}

#[test]
fn a_device_out_of_memory_gets_one_retry_after_an_eviction() {
    let (fake, cache) = explicit(MANY);
    drop(cache.get(at(0x1000), 8, READ).unwrap());
    fake.fail(1, libc::ENOMEM);
    drop(cache.get(at(0x2000), 8, READ).unwrap());
    assert_eq!((fake.live().len(), cache.stats().evictions, cache.stats().failures), (1, 1, 1));
    fake.fail(2, libc::ENOMEM);
    let error = cache.get(at(0x3000), 8, READ).unwrap_err();
    assert!(
        matches!(&error, Error::Registration { source: Some(e), .. } if e.raw_os_error() == Some(libc::ENOMEM))
    );
    // No registration is left to evict, so there is no second attempt.
    fake.fail(1, libc::ENOMEM);
    assert!(cache.get(at(0x3000), 8, READ).is_err());
    cache.get(at(0x3000), 8, READ).unwrap();
}

#[test]
fn a_device_without_overlaps_never_sees_an_overlap() {
    let (fake, cache) = crate::cache(Overlap::Refused, MANY, hostbuf::register::MonitorMode::Explicit);
    let narrow = cache.get(at(0x1000), 64, READ).unwrap();
    let error = cache.get(at(0x1000), 128, READ).unwrap_err().to_string();
    assert!(error.contains("overlapping"), "{error}");
    drop(narrow);
    let wide = cache.get(at(0x1000), 128, READ).unwrap();
    assert_eq!((fake.live().len(), wide.span()), (1, span(0x1000, 128)));
    // The registration is invalidated but leased, so it still conflicts.
    cache.invalidate(span(0x1000, 1)).unwrap();
    assert!(cache.get(at(0x1040), 8, READ).is_err());
    drop(wide);
    cache.get(at(0x1040), 8, READ).unwrap();
}

/// While one request waits in the queue, another thread requests the same budget repeatedly.
#[test]
fn a_later_request_waits_behind_an_earlier_one() {
    let (_, cache) = explicit(MANY.registrations(1));
    let wait = |start: usize| cache.get_timeout(at(start), 8, READ, Duration::from_secs(20));
    let mut held = Some(cache.get(at(0x1000), 8, READ).unwrap());
    let served = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lease = wait(0x10_0000).unwrap();
            served.store(true, std::sync::atomic::Ordering::SeqCst);
            drop(lease);
        });
        while cache.stats().waiting < 1 {
            std::thread::yield_now();
        }
        for n in 0..20 {
            drop(held.take());
            held = Some(wait(0x20_0000 + n * PAGE).unwrap());
            assert!(served.load(std::sync::atomic::Ordering::SeqCst), "overtaken in round {n}");
        }
        drop(held);
    });
}

/// Impossible lengths give an error, and the statistics stay right.
#[test]
fn lengths_near_the_address_limit_are_refused_and_keep_the_statistics_right() {
    let (_, cache) = explicit(Budget::new(16).bytes(usize::MAX));
    let lease = cache.get(at(0x1000), 1 << 20, READ).unwrap();
    let far = cache.get(at(4096), usize::MAX - 8192, READ).map(drop);
    assert!(matches!(far, Err(Error::Budget { leased: true, .. })), "{far:?}");
    assert_eq!(cache.stats().bytes, 1 << 20);
    drop(lease);
}

/// A request that cannot be met, because other leases take too much of the budget, does not evict
/// idle registrations.
#[test]
fn a_request_that_cannot_be_met_evicts_little() {
    let (_, cache) = explicit(Budget::new(64).bytes(16 * PAGE));
    let leased = cache.get(at(0x10_0000), 3 * PAGE, READ).unwrap();
    let idle = |n: usize| at(0x20_0000 + n * 2 * PAGE);
    (0..10).for_each(|n| drop(cache.get(idle(n), PAGE, READ).unwrap()));
    let refused = cache.get(at(0x30_0000), 14 * PAGE, READ).map(drop);
    assert!(matches!(refused, Err(Error::Budget { leased: true, .. })), "{refused:?}");
    assert!(cache.stats().evictions <= 1, "{:?}", cache.stats());
    // A request that fits evicts them.
    drop(cache.get(at(0x30_0000), 13 * PAGE, READ).unwrap());
    drop(leased);
    drop(cache.get(at(0x40_0000), 16 * PAGE, READ).unwrap());
}

/// Checks the limit to the byte: a request that fits exactly succeeds, and one byte more fails.
#[test]
fn the_budget_can_be_used_to_the_last_byte() {
    let (fake, cache) = explicit(Budget::new(8).bytes(100));
    let all = cache.get(at(0x1000), 100, READ).unwrap();
    assert!(matches!(cache.get(at(0x2000), 1, READ), Err(Error::Budget { leased: true, .. })));
    drop(all);
    let halves = [cache.get(at(0x3000), 50, READ).unwrap(), cache.get(at(0x4000), 50, READ).unwrap()];
    assert!(matches!(cache.get(at(0x5000), 1, READ), Err(Error::Budget { leased: true, .. })));
    drop(halves);
    // One of the two is evicted for this request, and both for a request that is one byte longer.
    drop(cache.get(at(0x6000), 50, READ).unwrap());
    assert_eq!((fake.live().len(), cache.stats().bytes), (2, 100));
    drop(cache.get(at(0x7000), 51, READ).unwrap());
    assert_eq!((fake.live().len(), cache.stats().bytes), (1, 51));
    assert_eq!(cache.stats().peak_bytes, 100);
}

/// A device that pins chunks of 16 pages, so that a registration costs all chunks that it touches.
struct Chunks(Fake);

const CHUNK: usize = 16 * PAGE;

impl Registrar for Chunks {
    type Handle = Stamp;
    type Key = u64;

    fn name(&self) -> String {
        "chunks".into()
    }

    fn properties(&self) -> RegistrarProperties {
        self.0.properties().granularity(CHUNK)
    }

    fn key(&self, stamp: &Stamp) -> u64 {
        stamp.0
    }

    fn register(&self, memory: &Memory, access: Access) -> hostbuf::register::Result<Stamp> {
        self.0.register(memory, access)
    }

    fn deregister(&self, memory: &Memory, stamp: Stamp) -> hostbuf::register::Result<()> {
        self.0.deregister(memory, stamp)
    }
}

/// Returns the number of bytes in the chunks that `span` touches.
fn footprint(span: Span) -> usize {
    (span.end().div_ceil(CHUNK) - span.start() / CHUNK) * CHUNK
}

/// Growing ranges are registered wider than requested. The budget reserves the footprint of the
/// wider range.
#[test]
fn the_footprint_of_a_growing_range_is_within_the_budget() {
    for overlap in [Overlap::Free, Overlap::Refused] {
        let buffer =
            HostBuffer::allocate(&Solo, BufferOptions::new(200 * PAGE as u64).pages(Pages::Small)).unwrap();
        let start = buffer.as_ptr().as_ptr() as usize;
        let budget = Budget::new(64).bytes(6 * CHUNK);
        let device = Arc::new(Chunks(Fake::new(overlap)));
        let cache = RegistrationCache::new(device.clone(), budget, MonitorMode::Explicit).unwrap();
        let mut wider = 0;
        for begin in (0..180).step_by(7) {
            for pages in 1..=20 {
                let lease = cache.get(at(start + begin * PAGE), pages * PAGE, READ).unwrap();
                wider += usize::from(lease.span().len() > pages * PAGE);
                let pinned: usize = device.0.live().iter().map(|&(_, span, _)| footprint(span)).sum();
                let stats = cache.stats();
                assert_eq!(stats.bytes, pinned, "{begin} {pages} {stats:?}");
                assert!(pinned <= budget.bytes && stats.peak_bytes <= budget.bytes, "{pinned} {stats:?}");
            }
        }
        assert!(wider > 100, "{wider} requests were served by more than they asked for");
    }
}
