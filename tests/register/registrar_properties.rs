//! The properties of a registrar, which the cache and the allocator obey, and the kinds of memory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{
    Access, Budget, DeviceRange, DmaBuf, Error, Memory, Mlock, MonitorMode, Overlap, PinnedAlloc, Probe,
    Registrar, RegistrarProperties, Registration, RegistrationCache,
};

use crate::memory::{GuardedMapping, PAGE};
use crate::{MANY, READ, at, skip};

/// Returns a fake of host memory with a longest range.
fn limited(longest: usize) -> Arc<Fake> {
    Arc::new(Fake::with_properties(RegistrarProperties::new(Overlap::Free).longest(longest)))
}

#[test]
fn a_cache_requests_no_range_longer_than_the_longest() {
    let fake = limited(8 * PAGE);
    let cache = RegistrationCache::new(fake.clone(), MANY, MonitorMode::Explicit).unwrap();
    drop(cache.get(at(0x10_0000), 8 * PAGE, READ).unwrap());
    let error = cache.get(at(0x10_0000), 8 * PAGE + 1, READ).unwrap_err();
    let Error::Registration { device, memory, why, .. } = &error else { panic!("{error:?}") };
    assert_eq!((device.as_str(), memory.len()), ("fake", 8 * PAGE + 1));
    assert!(why.contains("at most 32 KiB at once"), "{why}");
    assert!(cache.keep(at(0x10_0000), 8 * PAGE + 1, READ).is_err());
    // The device was not called, and nothing is reserved.
    assert_eq!((fake.made(), cache.stats().failures, cache.stats().registrations), (1, 0, 1));
}

#[test]
fn a_growing_range_stays_within_the_longest() {
    let area = GuardedMapping::new(64);
    let longest = 24 * PAGE;
    let fake = limited(longest);
    if let Probe::Missing(why) = MonitorMode::probe() {
        return skip(&format!("the strict monitor: {why}"));
    }
    let cache = RegistrationCache::new(fake.clone(), MANY, MonitorMode::Strict).unwrap();
    let mut grown = 0;
    for pages in 1..=24 {
        let lease = cache.get(area.pointer(), pages * PAGE, READ).unwrap();
        grown += usize::from(lease.span().len() > pages * PAGE);
        assert!(lease.span().len() <= longest, "{pages} pages: {}", lease.span());
    }
    assert!(grown > 0, "no registration was wider than its request");
    // A wider range than the longest is never tried.
    assert_eq!(cache.stats().failures, 0);
}

#[test]
fn a_slab_is_no_longer_than_the_longest_range() {
    let fake = limited((1 << 20) + 5);
    let pinned = PinnedAlloc::new(fake.clone(), READ, 1 << 30);
    let blocks: Vec<_> = (0..40).map(|_| pinned.allocate(100_000).unwrap()).collect();
    assert!(fake.live().iter().all(|(_, span, _)| span.len() <= 1 << 20), "{:?}", fake.live());
    assert!(fake.live().len() >= 5 && blocks.len() == 40);
    assert!(matches!(pinned.allocate(3 << 20), Err(Error::Registration { .. })));
}

#[test]
fn a_cache_over_invalid_properties_is_not_made() {
    for (properties, words) in [
        (RegistrarProperties::new(Overlap::Free).granularity(48), "granularity of 48 bytes"),
        (RegistrarProperties::new(Overlap::Free).longest(0), "longest range of 0 bytes"),
    ] {
        let fake = Arc::new(Fake::with_properties(properties));
        let budget = Budget::new(2).bytes(PAGE);
        let error = RegistrationCache::new(fake, budget, MonitorMode::Explicit).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(words), "{error}");
    }
}

/// Returns a dma-buf, which for the fake is any descriptor, and a range of a device.
fn other_kinds() -> [Memory; 2] {
    let file: OwnedFd = File::open("/proc/self/status").expect("a file").into();
    let part = DmaBuf::new(file, 4096..3 * 4096, 0x7000_0000).expect("a part");
    [part.into(), DeviceRange::new(0x2_0000_0000, 8192).expect("a range").into()]
}

#[test]
fn dma_bufs_and_device_memory_are_registered_where_the_device_supports_them() {
    let fake = Arc::new(Fake::new(Overlap::Refused));
    for memory in other_kinds() {
        let first = Registration::new(&fake, memory.clone(), Access::WRITE).unwrap();
        assert_eq!((first.memory(), first.span()), (&memory, None));
        assert_eq!(fake.live_memory(), [(first.key(), memory.clone(), Access::WRITE)]);
        assert_eq!((fake.live().len(), fake.pinned()), (0, 8192));
        let again = Registration::new(&fake, memory, READ).unwrap_err();
        assert!(
            matches!(again, Error::Registration { .. }) && again.to_string().contains("overlaps"),
            "{again}"
        );
        first.deregister().unwrap();
        assert!(fake.live_memory().is_empty());
    }
}

#[test]
fn other_kinds_of_memory_are_unsupported_where_the_device_registers_host_memory_only() {
    let host_only = Fake::with_properties(RegistrarProperties::new(Overlap::Free));
    for memory in other_kinds() {
        for (device, error) in [
            ("fake", host_only.register(&memory, READ).map(drop).unwrap_err()),
            ("mlock", Mlock::new().register(&memory, READ).unwrap_err()),
        ] {
            assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
            let text = error.to_string();
            for words in [memory.to_string().as_str(), device, "8 KiB", "copy the data"] {
                assert!(text.contains(words), "{text}");
            }
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
    assert!(host_only.live_memory().is_empty());
}
