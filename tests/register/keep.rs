//! Registrations that are exempt from eviction.

use hostbuf::register::Error;
use hostbuf::register::{Budget, MonitorMode, Overlap, Registrar};

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{READ, Stamped, at, cache, explicit, kept_one, span, strict};

const TWO: Budget = Budget::new(2).bytes(1 << 30);

/// ```text
///   |------ kept ------|    |a|    |b|    |c| ...   with room for two
///        |part|
/// ```
#[test]
fn a_kept_registration_is_not_evicted_and_serves_its_parts() {
    let (fake, cache) = explicit(TWO);
    cache.keep(at(0x10_0000), 0x8000, READ).unwrap();
    let kept = cache.get(at(0x10_0000), 0x8000, READ).unwrap().stamp();
    for round in 0..100 {
        drop(cache.get(at(0x20_0000 + 0x2000 * round), PAGE, READ).unwrap());
        assert_eq!(cache.get(at(0x10_0100 + round), 77, READ).unwrap().stamp(), kept);
    }
    assert!(!fake.ended().contains(&kept.0));
    // Only the other slot of the budget is evicted.
    let lease = cache.get(at(0x20_0000), PAGE, READ).unwrap();
    assert!(matches!(cache.get(at(0x30_0000), PAGE, READ), Err(Error::Budget { .. })));
    drop(lease);
    // Keeping a range twice counts once.
    cache.keep(at(0x10_0000), 0x10, READ).unwrap();
    assert_eq!(fake.live().iter().filter(|(_, span, _)| span.start() == 0x10_0000).count(), 1);
    cache.invalidate(span(0x10_4000, 1)).unwrap();
    assert!(fake.ended().contains(&kept.0));
    // Its slot is free again.
    let both = [0x20_0000, 0x30_0000].map(|start| cache.get(at(start), PAGE, READ).unwrap());
    drop(both);
    cache.keep(at(0x10_0000), 0x10, READ).unwrap();
    drop(cache);
    assert!(fake.live().is_empty());
}

#[test]
fn a_kept_registration_blocks_overlapping_ones_on_a_device_without_overlaps() {
    let (fake, cache) = cache(Overlap::Refused, TWO, MonitorMode::Explicit);
    cache.keep(at(0x10_0000), 0x2000, READ).unwrap();
    assert!(matches!(cache.get(at(0x10_1000), 0x2000, READ), Err(Error::Registration { .. })));
    assert_eq!((fake.live().len(), fake.properties().overlap), (1, Overlap::Refused));
}

#[test]
fn keep_does_not_outlive_a_change_of_the_memory() {
    let Some((fake, cache)) = strict() else { return };
    let area = GuardedMapping::new(4);
    cache.keep(area.pointer(), area.len(), READ).unwrap();
    let before = kept_one(&cache, area.pointer(), area.len());
    map_over(area.at(), PAGE);
    assert_ne!(kept_one(&cache, area.pointer(), area.len()), before);
    // A thread of the cache ends the registration.
    while !fake.ended().contains(&before.0) {
        std::thread::yield_now();
    }
    // Initialised data of a program is a private mapping of a file, which cannot be watched.
    static DATA: [u8; 64] = [7; 64];
    let refused = cache.keep(DATA.as_ptr(), 64, READ).unwrap_err();
    assert!(matches!(refused, Error::Registration { .. }), "{refused}");
}
