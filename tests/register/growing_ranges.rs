//! Ranges that grow from request to request.

#![allow(unsafe_code, reason = "the tests change the mappings of registered memory")]

use std::sync::Arc;

use hostbuf::register::Error;
use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{
    Access, Memory, MonitorMode, Overlap, Registrar, RegistrarProperties, RegistrationCache,
};

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{FakeCache, MANY, READ, explicit, strict, strict_with};

/// The number of rounds after which a test fails because the monitor had no core in any of them.
const ROUNDS: usize = 100;

/// Runs `round` with a new cache until the monitor had a core in time for each of its requests, and
/// returns the result of that round. Returns `None` without a strict monitor.
///
/// A request waits up to 20 ms for a monitor without a core. Then its registration serves only the
/// lease (`Stats::busy`, `Stats::unproven`), so no later request grows or hits it, and the round
/// shows nothing about the ranges that the cache chooses.
fn undisturbed<T>(overlap: Overlap, round: impl Fn(&Fake, &FakeCache) -> T) -> Option<T> {
    for _ in 0..ROUNDS {
        let (fake, cache) = strict_with(overlap, MANY)?;
        let result = round(&fake, &cache);
        let stats = cache.stats();
        if (stats.busy, stats.unproven) == (0, 0) {
            return Some(result);
        }
    }
    panic!("no round of {ROUNDS} in which the cache kept all registrations");
}

#[test]
fn a_growing_range_registers_at_most_twice_its_last_bytes() {
    // |-|
    // |---|           each twice as long as the longest so far, where it was grown into
    // |-------|
    let area = GuardedMapping::new(1024);
    let round = undisturbed(Overlap::Free, |fake, cache| {
        for pages in 1..=1024 {
            let lease = cache.get(area.pointer(), pages * PAGE, READ).unwrap();
            assert!(lease.span().start() >= area.at() && lease.span().end() <= area.at() + area.len());
        }
        (fake.made_bytes(), cache.stats().retried)
    });
    let Some((made, retried)) = round else { return };
    assert!(made <= 2 * area.len(), "{made} of {}", area.len());
    assert_eq!(retried, 0);
}

/// The bound also applies to a range that grows to both sides, at once or alternately, and to one
/// that ends anywhere in its mapping.
#[test]
fn a_range_that_grows_to_both_sides_stays_within_the_bound() {
    type Shape<'a> = &'a dyn Fn(usize) -> (usize, usize);
    let area = GuardedMapping::new(4096);
    let shapes: [(Shape, usize); 4] = [
        (&|step| (2048 - step.div_ceil(2), step), 1030),
        (&|step| (2048 - step / 3, step), 700),
        (&|step| (2048 - step, 2 * step), 600),
        (&|step| (0, step), 1025),
    ];
    for (n, (shape, steps)) in shapes.into_iter().enumerate() {
        let round = undisturbed(Overlap::Free, |fake, cache| {
            for step in 1..=steps {
                let (first, pages) = shape(step);
                let start = area.at() + first * PAGE;
                let lease = cache.get(start as *const u8, pages * PAGE, READ).unwrap();
                assert!(lease.span().start() <= start && lease.span().end() >= start + pages * PAGE);
            }
            (longest(fake), fake.made_bytes())
        });
        let Some((last, made)) = round else { return };
        let asked = shape(steps).1 * PAGE;
        assert!(made <= 2 * last && last < 3 * asked, "{n}: {made} made, the last {last} for {asked}");
    }
}

/// Returns the length of the longest registration.
fn longest(fake: &Fake) -> usize {
    fake.live().into_iter().map(|(_, span, _)| span.len()).max().unwrap()
}

/// A window of constant size that moves on is not a growing range.
#[test]
fn a_moving_window_is_registered_as_requested() {
    let area = GuardedMapping::new(1024);
    let round = undisturbed(Overlap::Free, |fake, cache| {
        for first in 0..1000 {
            drop(cache.get((area.at() + first * PAGE) as *const u8, 8 * PAGE, READ).unwrap());
        }
        longest(fake)
    });
    let Some(longest) = round else { return };
    assert!(longest <= 16 * PAGE, "{longest}");
}

/// A range that the monitor watches as one may consist of two mappings, of which the second is
/// read-only for the device.
#[test]
fn growth_stops_at_a_mapping_with_another_protection() {
    let Some((_, cache)) = strict() else { return };
    let area = GuardedMapping::new(32);
    let middle = area.at() + 12 * PAGE;
    // SAFETY: the test's own pages.
    assert_eq!(unsafe { libc::mprotect(middle as *mut _, 20 * PAGE, libc::PROT_READ) }, 0);
    drop(cache.get(middle as *const u8, 1, READ).unwrap());
    for pages in 1..=12 {
        let lease = cache.get(area.pointer(), pages * PAGE, Access::WRITE).unwrap();
        assert!(lease.span().end() <= middle, "{pages} pages: {}", lease.span());
    }
}

/// A device with a limit on the length of a registration.
struct LimitedDevice(usize);

impl Registrar for LimitedDevice {
    type Handle = ();
    type Key = ();

    fn name(&self) -> String {
        "limited".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, (): &()) {}

    fn register(&self, memory: &Memory, access: Access) -> hostbuf::register::Result<()> {
        if memory.len() <= self.0 {
            return Ok(());
        }
        let source = Some(std::io::Error::from_raw_os_error(libc::ENOMEM));
        let (device, memory) = (self.name(), memory.clone());
        Err(Error::Registration { device, memory, access, why: "too long".into(), source })
    }

    fn deregister(&self, _: &Memory, (): ()) -> hostbuf::register::Result<()> {
        Ok(())
    }
}

/// A request that the device accepts does not fail because the cache tried a wider range, and
/// evicts no other registration.
#[test]
fn growth_stops_at_the_longest_range_of_the_device() {
    if strict().is_none() {
        return;
    }
    let (area, other) = (GuardedMapping::new(32), GuardedMapping::new(1));
    let cache =
        RegistrationCache::new(Arc::new(LimitedDevice(12 * PAGE)), MANY, MonitorMode::Strict).unwrap();
    drop(cache.get(other.pointer(), PAGE, READ).unwrap());
    for pages in 1..=12 {
        drop(cache.get(area.pointer(), pages * PAGE, READ).unwrap());
    }
    assert_eq!(cache.stats().evictions, 0);
    let refused = cache.get(area.pointer(), 13 * PAGE, READ).map(drop);
    assert!(
        matches!(&refused, Err(Error::Registration { memory, .. }) if memory.len() == 13 * PAGE),
        "{refused:?}"
    );
}

/// With an explicit monitor the cache never registers more than the program requests, because only
/// the program knows of changes. The program may request the whole.
#[test]
fn an_explicit_monitor_registers_exactly_the_request() {
    let area = GuardedMapping::new(64);
    for whole in [false, true] {
        let (fake, cache) = explicit(MANY);
        if whole {
            cache.keep(area.pointer(), area.len(), READ).unwrap();
        }
        for pages in 1..=64 {
            let lease = cache.get(area.pointer(), pages * PAGE, READ).unwrap();
            assert_eq!(lease.span().len(), if whole { area.len() } else { pages * PAGE });
        }
        assert_eq!(fake.made(), if whole { 1 } else { 64 });
    }
}

#[test]
fn nothing_grows_over_discarded_pages() {
    let Some((_, cache)) = strict() else { return };
    let area = GuardedMapping::new(64);
    drop(cache.get(area.pointer(), PAGE, READ).unwrap());
    // SAFETY: the test's own page.
    unsafe { libc::madvise((area.at() + 63 * PAGE) as *mut _, PAGE, libc::MADV_DONTNEED) };
    for pages in 2..40 {
        let lease = cache.get(area.pointer(), pages * PAGE, READ).unwrap();
        assert_eq!(lease.span().len(), pages * PAGE);
    }
}

#[test]
fn growth_stays_in_one_mapping_and_one_access() {
    let area = GuardedMapping::new(3);
    let end = undisturbed(Overlap::Free, |_, cache| {
        drop(cache.get(area.pointer(), 2 * PAGE, READ).unwrap());
        cache.get(area.pointer(), 2 * PAGE + 1, READ).unwrap().span().end()
    });
    let Some(end) = end else { return };
    assert_eq!(end, area.at() + area.len());
    let Some((_, cache)) = strict() else { return };
    let other = GuardedMapping::new(8);
    drop(cache.get(other.pointer(), PAGE, READ).unwrap());
    let writing = cache.get(other.pointer(), PAGE + 1, Access::WRITE).unwrap();
    assert_eq!(writing.span().len(), PAGE + 1);
}

/// ```text
///         |-|      |-|
///       |---|      |---|          where the device has no room for both, the old one goes first
///   |-------|      |-------|
/// ```
#[test]
fn a_range_grows_downwards_and_on_a_device_without_overlaps() {
    for overlap in [Overlap::Free, Overlap::Refused] {
        for left in [false, true] {
            let area = GuardedMapping::new(1024);
            let made = undisturbed(overlap, |fake, cache| {
                for pages in 1..=1024 {
                    let start = if left { area.at() + area.len() - pages * PAGE } else { area.at() };
                    let lease = cache.get(start as *const u8, pages * PAGE, READ).unwrap();
                    let (from, to) = (lease.span().start(), lease.span().end());
                    assert!(from >= area.at() && to <= area.at() + area.len());
                    assert!(from <= start && to >= start + pages * PAGE);
                }
                fake.made_bytes()
            });
            let Some(made) = made else { return };
            assert!(made <= 2 * area.len(), "{overlap:?}, left {left}: {made} of {}", area.len());
        }
    }
}

/// On such a device no range grows into a registered neighbour.
#[test]
fn growth_does_not_reach_a_registered_neighbour() {
    let area = GuardedMapping::new(16);
    let live = undisturbed(Overlap::Refused, |fake, cache| {
        let _neighbour = cache.get((area.at() + 6 * PAGE) as *const u8, PAGE, READ).unwrap();
        for pages in 1..=6 {
            drop(cache.get(area.pointer(), pages * PAGE, READ).unwrap());
        }
        fake.live().len()
    });
    assert!(live.is_none_or(|live| live == 2), "{live:?}");
}

/// A new mapping beside a watched one: the kernel merges the two once both are watched.
#[test]
fn a_new_mapping_beside_a_watched_one_is_kept() {
    for half in 0..2 {
        for touched in [false, true] {
            let round = undisturbed(Overlap::Free, |fake, cache| {
                let area = GuardedMapping::new(8);
                drop(cache.get(area.pointer(), area.len(), READ).unwrap());
                let new = area.at() + half * 4 * PAGE;
                map_over(new, 4 * PAGE);
                if touched {
                    // SAFETY: the test's own pages.
                    unsafe { (new as *mut u8).write_bytes(1, 4 * PAGE) };
                }
                let stamp = |at: usize, pages: usize| {
                    *cache.get(at as *const u8, pages * PAGE, READ).unwrap().handle()
                };
                let twice = [stamp(new, 4), stamp(new, 4)];
                let counts = (cache.stats().unwatchable, fake.made());
                let changed = [area.at(), area.at() + 4 * PAGE].map(|at| {
                    let before = stamp(at, 1);
                    map_over(at, 4 * PAGE);
                    [before, stamp(at, 1)]
                });
                (twice, counts, changed)
            });
            let Some(([before, after], counts, changed)) = round else { return };
            assert_eq!(before, after, "{half} {touched}");
            assert_eq!(counts, (0, 2), "{half} {touched}");
            // Both ranges are still watched.
            assert!(changed.iter().all(|[before, after]| before != after), "{half} {touched}: {changed:?}");
        }
    }
}

/// The mappings of a request may be watched by different userfaultfds.
#[test]
fn a_new_mapping_between_two_watched_ones_is_kept_with_both() {
    let round = undisturbed(Overlap::Free, |fake, cache| {
        let area = GuardedMapping::new(3);
        drop(cache.get(area.pointer(), PAGE, READ).unwrap());
        let last = area.at() + 2 * PAGE;
        map_over(last, PAGE);
        drop(cache.get(last as *const u8, PAGE, READ).unwrap());
        map_over(area.at() + PAGE, PAGE);
        let all = || *cache.get(area.pointer(), area.len(), READ).unwrap().handle();
        let twice = [all(), all()];
        let (unwatchable, ended) = (cache.stats().unwatchable, fake.ended());
        let changed = [0, 1, 2].map(|page| {
            let before = all();
            map_over(area.at() + page * PAGE, PAGE);
            [before, all()]
        });
        (twice, unwatchable, ended, changed)
    });
    let Some(([before, after], unwatchable, ended, changed)) = round else { return };
    assert_eq!((after, unwatchable), (before, 0));
    assert!(ended.is_empty(), "the others have not changed: {ended:?}");
    // All ranges are still watched.
    assert!(changed.iter().all(|[before, after]| before != after), "{changed:?}");
}
