//! Ranges that grow.

use hostbuf::register::{Access, Monitor, Overlap, Probe};

use crate::memory::{Area, PAGE};
use crate::{MANY, READ, cache};

#[test]
fn a_growing_range_registers_at_most_twice_its_last_bytes() {
    if let Probe::Missing(why) = Monitor::probe() {
        return eprintln!("skipped: the strict monitor: {why}");
    }
    // |-|
    // |---|           each twice as long as the longest so far, where it was grown into
    // |-------|
    let (fake, cache) = cache(Overlap::Free, MANY, Monitor::Strict);
    let area = Area::new(1024);
    for pages in 1..=1024 {
        let lease = cache.get(area.pointer(), pages * PAGE, READ).unwrap();
        assert!(lease.span().start() >= area.at() && lease.span().end() <= area.at() + area.len());
    }
    assert!(fake.made_bytes() <= 2 * area.len(), "{} of {}", fake.made_bytes(), area.len());
    assert_eq!(cache.stats().retried, 0);
}

#[test]
fn nothing_beyond_the_request_where_pages_have_been_given_back() {
    if let Probe::Missing(why) = Monitor::probe() {
        return eprintln!("skipped: the strict monitor: {why}");
    }
    let (_, cache) = cache(Overlap::Free, MANY, Monitor::Strict);
    let area = Area::new(64);
    drop(cache.get(area.pointer(), PAGE, READ).unwrap());
    // SAFETY: the test's own page.
    unsafe { libc::madvise((area.at() + 63 * PAGE) as *mut _, PAGE, libc::MADV_DONTNEED) };
    for pages in 2..40 {
        let lease = cache.get(area.pointer(), pages * PAGE, READ).unwrap();
        assert_eq!(lease.span().len(), pages * PAGE);
    }
}

#[test]
fn neither_over_the_edge_of_a_mapping_nor_with_other_rights() {
    if let Probe::Missing(why) = Monitor::probe() {
        return eprintln!("skipped: the strict monitor: {why}");
    }
    let (_, cache) = cache(Overlap::Free, MANY, Monitor::Strict);
    let area = Area::new(3);
    drop(cache.get(area.pointer(), 2 * PAGE, READ).unwrap());
    let lease = cache.get(area.pointer(), 2 * PAGE + 1, READ).unwrap();
    assert_eq!(lease.span().end(), area.at() + area.len());
    let other = Area::new(8);
    drop(cache.get(other.pointer(), PAGE, READ).unwrap());
    let writing = cache.get(other.pointer(), PAGE + 1, Access::WRITE).unwrap();
    assert_eq!(writing.span().len(), PAGE + 1);
}
