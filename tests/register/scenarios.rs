//! Scenarios of the tests of UCX's and libfabric's registration caches.

use std::time::Duration;

use hostbuf::register::Budget;
use hostbuf_tests::eventually;

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{MANY, READ, at, explicit, span, strict};

#[test]
fn one_range_twice_is_one_registration() {
    let (fake, cache) = explicit(MANY);
    let first = cache.get(at(0x10_0000), 8192, READ).unwrap();
    let second = cache.get(at(0x10_0000), 8192, READ).unwrap();
    assert_eq!((first.handle(), fake.made()), (second.handle(), 1));
    // A range inside with fewer rights hits; more rights need another registration.
    let inside = cache.get(at(0x10_1000), 100, READ).unwrap();
    assert_eq!((inside.handle(), inside.span()), (first.handle(), span(0x10_0000, 8192)));
    let writing = cache.get(at(0x10_0000), 8192, hostbuf::register::Access::WRITE).unwrap();
    assert_eq!(fake.made(), 2);
    drop((first, second, inside, writing));
    assert_eq!(fake.ended().len(), 0);
    drop(cache);
    assert!(fake.live().is_empty());
}

#[test]
fn leases_released_one_by_one_with_invalidations_between() {
    let (fake, cache) = explicit(MANY);
    let (start, length) = (0x20_0000, 4096);
    let mut leases: Vec<_> = (0..10).map(|_| cache.get(at(start), length, READ).unwrap()).collect();
    let old = *leases[0].handle();
    while let Some(lease) = leases.pop() {
        cache.invalidate(span(start, length)).unwrap();
        // The old registration lives as long as its lease, and is never found again.
        assert!(!fake.ended().contains(&old.0));
        let fresh = cache.get(at(start), length, READ).unwrap();
        assert_ne!(*fresh.handle(), old);
        drop((fresh, lease));
    }
    assert_eq!(fake.ended().iter().filter(|&&n| n == old.0).count(), 1);
    cache.flush().unwrap();
    assert!(fake.live().is_empty());
    assert_eq!(fake.ended().len(), fake.made());
}

#[test]
fn three_regions_with_gaps_and_then_one_over_all() {
    // +-----+      +-----+      +-----+
    // |  1  |      |  2  |      |  3  |
    // +-----+      +-----+      +-----+
    // +-------------------------------+
    // |               4               |
    // +-------------------------------+
    let (fake, cache) = explicit(MANY);
    for i in 0..3 {
        drop(cache.get(at(0x30_0000 + 2 * i * PAGE), PAGE, READ).unwrap());
    }
    let all = cache.get(at(0x30_0000), 5 * PAGE, READ).unwrap();
    assert_eq!((fake.made(), fake.live().len()), (4, 4));
    // Each small range still hits one of the registrations.
    for i in 0..3 {
        let _small = cache.get(at(0x30_0000 + 2 * i * PAGE), PAGE, READ).unwrap();
        let _gap = cache.get(at(0x30_0000 + (2 * i).min(3) * PAGE + PAGE), PAGE, READ).unwrap();
    }
    assert_eq!(fake.made(), 4);
    drop(all);
}

#[test]
fn a_registrar_that_always_fails_under_ten_threads() {
    let (fake, cache) = explicit(MANY);
    fake.fail(usize::MAX, libc::EIO);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let error = cache.get(at(0x40_0000), 4096, READ).unwrap_err().to_string();
                    assert!(error.contains("the test made this call fail"), "{error}");
                }
            });
        }
    });
    assert_eq!((fake.made(), fake.live().len()), (0, 0));
    let stats = cache.stats();
    assert_eq!((stats.failures, stats.registrations, stats.bytes), (500, 0, 0));
    fake.fail(0, 0);
    cache.get(at(0x40_0000), 4096, READ).unwrap();
}

#[test]
fn a_budget_of_two_keeps_the_last_two() {
    let (_, cache) = explicit(MANY.registrations(2));
    let id = |n: usize| cache.get(at(0x50_0000 + n * PAGE), PAGE, READ).unwrap().handle().0;
    let (_, two, three) = (id(1), id(2), id(3));
    assert_eq!((id(2), id(3)), (two, three));
}

#[test]
fn a_byte_budget_of_1000_holds_600_once() {
    let (fake, cache) = explicit(Budget::new(10).bytes(1000));
    for round in 0..5 {
        drop(cache.get(at(0x60_0000), 600, READ).unwrap());
        drop(cache.get(at(0x61_0000), 600, READ).unwrap());
        assert_eq!(fake.live().len(), 1, "round {round}");
    }
    assert_eq!(fake.peak(), (1, 600));
}

#[test]
fn counters_are_exact() {
    let (_, cache) = explicit(MANY.registrations(2));
    for n in [1, 1, 2, 1, 3, 3, 3] {
        drop(cache.get(at(0x70_0000 + n * PAGE), PAGE, READ).unwrap());
    }
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.hits, stats.evictions, stats.invalidated), (3, 4, 1, 0));
    assert_eq!((stats.registrations, stats.bytes, stats.peak_registrations), (2, 2 * PAGE, 2));
    assert_eq!(stats.registered_bytes, 3 * PAGE as u64);
    cache.flush().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.invalidated, stats.registrations, stats.bytes, stats.hits), (2, 0, 0, 4));
}

#[test]
fn forty_thousand_unmaps_of_one_page_leave_nothing_pending() {
    let Some((fake, cache)) = strict() else { return };
    let area = GuardedMapping::new(1);
    for round in 0..40_000 {
        if round % 100 == 0 {
            drop(cache.get(area.pointer(), PAGE, READ).unwrap());
            // The reaper keeps up with 400 registrations, though not at once on a busy machine.
            eventually("the reaper keeps up", Duration::from_secs(20), || fake.live().len() <= 40);
        }
        map_over(area.at(), PAGE);
    }
    drop(cache);
    assert!(fake.live().is_empty());
}

#[test]
fn a_request_over_the_edge_of_a_page_is_one_registration() {
    let (fake, cache) = explicit(MANY);
    drop(cache.get(at(0x80_0fff), 2, READ).unwrap());
    drop(cache.get(at(0x80_0fff), 1, READ).unwrap());
    drop(cache.get(at(0x80_1000), 1, READ).unwrap());
    assert_eq!(fake.made(), 1);
    drop(cache.get(at(0x80_1000), 2, READ).unwrap());
    assert_eq!(fake.made(), 2);
}

#[test]
fn each_device_has_its_own_cache_in_any_drop_order() {
    let ((one, here), (two, there)) = (explicit(MANY), explicit(MANY));
    let (a, b) = (here.get(at(0x90_0000), 64, READ).unwrap(), there.get(at(0x90_0000), 64, READ).unwrap());
    assert_eq!((one.made(), two.made()), (1, 1));
    drop((a, b));
    // The user's reference to the device is dropped before the cache, which keeps its own.
    let weak = std::sync::Arc::downgrade(&one);
    drop(one);
    assert!(weak.upgrade().is_some());
    drop(here);
    assert!(weak.upgrade().is_none());
    drop(there);
    assert_eq!(two.ended().len(), 1);
}
