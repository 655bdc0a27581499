//! Requests for several ranges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostbuf::register::Error;
use hostbuf::register::testing::delays;
use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{Budget, Lease, MonitorMode, Overlap, Span};

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{FakeCache, MANY, READ, Stamped, at, cache, explicit, span, strict, strict_with};

fn spans(areas: &[GuardedMapping]) -> Vec<Span> {
    areas.iter().map(|area| span(area.at(), area.len())).collect()
}

fn numbers(cache: &FakeCache, spans: &[Span]) -> Vec<u64> {
    cache.get_many(spans, READ).unwrap().iter().map(|lease| lease.stamp().0).collect()
}

#[test]
fn get_many_registers_only_the_changed_ranges_again() {
    let Some((fake, cache)) = strict() else { return };
    let areas: Vec<GuardedMapping> = (0..8).map(|_| GuardedMapping::new(2)).collect();
    let spans = spans(&areas);
    let mut before = numbers(&cache, &spans);
    assert_eq!((numbers(&cache, &spans), fake.made()), (before.clone(), 8));
    for round in 0..200 {
        let changed = round * 5 % 8;
        map_over(areas[changed].at() + round % 2 * PAGE, PAGE);
        let after = numbers(&cache, &spans);
        for (n, (old, new)) in before.iter().zip(&after).enumerate() {
            assert_eq!(old == new, n != changed, "round {round}: of {n}, when {changed} changed");
        }
        before = after;
    }
    assert_eq!(fake.made(), 8 + 200);
    assert_eq!(cache.stats().hits + cache.stats().misses, 8 * 202);
}

/// One of the ranges changes, and the monitor reads the event late. A request in between does not
/// get the old registration, which is still in the table.
#[test]
fn get_many_does_not_hit_between_a_change_and_its_event() {
    let Some((_, cache)) = strict() else { return };
    delays::delay_events(Duration::from_micros(200));
    let areas: Vec<GuardedMapping> = (0..4).map(|_| GuardedMapping::new(2)).collect();
    let spans = spans(&areas);
    let mut before = numbers(&cache, &spans);
    for round in 0..1000 {
        let changed = round % 4;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                map_over(areas[changed].at(), areas[changed].len());
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let after = numbers(&cache, &spans);
            assert_ne!(after[changed], before[changed], "round {round}");
            before = after;
        });
    }
    delays::delay_events(Duration::ZERO);
}

/// Other threads change and request the ranges all the time: each request succeeds, and nothing
/// leaks.
#[test]
fn get_many_succeeds_under_changes_and_a_small_budget() {
    let budget = Budget::new(6).bytes(12 * PAGE);
    let Some((fake, cache)) = strict_with(Overlap::Free, budget) else { return };
    let areas: Vec<GuardedMapping> = (0..4).map(|_| GuardedMapping::new(2)).collect();
    let spans = spans(&areas);
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2000 {
                map_over(areas[round % 4].at(), PAGE);
            }
            busy.store(false, Ordering::Release);
        });
        for thread in 0..2usize {
            let (cache, spans, busy) = (&cache, &spans, &busy);
            scope.spawn(move || {
                let mut leases: Vec<Lease<'_, Fake>> = Vec::new();
                while busy.load(Ordering::Acquire) {
                    match cache.get_many_into(&spans[thread..thread + 3], READ, &mut leases) {
                        Ok(()) => {
                            assert_eq!(leases.len(), 3);
                            let both = leases.iter().zip(&spans[thread..]);
                            both.for_each(|(lease, asked)| assert!(lease.span().contains(*asked)));
                        }
                        // The other threads' leases use the budget, or the range is remapped too
                        // often.
                        Err(
                            Error::Budget { leased: true, .. } | Error::Registration { source: None, .. },
                        ) => {
                            assert!(leases.is_empty());
                        }
                        Err(error) => panic!("{error}"),
                    }
                    leases.clear();
                }
            });
        }
    });
    let peak = fake.peak();
    assert!(peak.0 <= budget.registrations && peak.1 <= budget.bytes, "{peak:?}");
    assert_eq!(numbers(&cache, &spans[..2]).len(), 2);
    drop(cache);
    assert_eq!((fake.live().len(), fake.ended().len()), (0, fake.made()));
}

#[test]
fn a_refused_range_returns_all_leases_of_get_many() {
    let (fake, cache) = explicit(MANY);
    let spans: Vec<Span> = (1..=5).map(|n| span(n * PAGE, 64)).collect();
    let mut leases = cache.get_many(&[span(0x100_0000, 8)], READ).unwrap();
    drop(cache.get_many(&spans[..3], READ).unwrap());
    fake.fail(1, libc::EIO);
    assert!(matches!(cache.get_many_into(&spans, READ, &mut leases), Err(Error::Registration { .. })));
    // The lease that the vector had remains; none of the other ranges is leased, so flush removes
    // them.
    assert_eq!(leases.len(), 1);
    cache.flush().unwrap();
    assert_eq!(fake.live().len(), 1);
    assert_eq!(cache.get_many(&spans, READ).unwrap().len(), 5);
}

#[test]
fn get_many_takes_no_ranges_and_the_same_range_twice() {
    let (fake, cache) = cache(Overlap::Refused, MANY, MonitorMode::Explicit);
    assert!(cache.get_many(&[], READ).unwrap().is_empty());
    let leases = cache.get_many(&[span(0x1000, 64), span(0x1000, 64), span(0x1010, 8)], READ).unwrap();
    assert_eq!((leases.len(), fake.made()), (3, 1));
    assert!(cache.try_get(at(0x1000), 64, READ).is_some());
}
