//! Memory that other threads change all the time, and memory during a discard.

#![allow(unsafe_code, reason = "the tests discard memory that is registered")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hostbuf::register::testing::delays;
use hostbuf::register::testing::fake::{Fake, Stamp};
use hostbuf::register::{
    Access, Memory, MonitorMode, Overlap, Probe, Registrar, RegistrarProperties, RegistrationCache,
};

use crate::memory::{GuardedMapping, PAGE};
use crate::{MANY, READ, Stamped, rounds, skip, strict};

/// A device whose handle contains the first byte of the memory at the time of the registration.
struct FirstByteDevice(Fake);

impl Registrar for FirstByteDevice {
    type Handle = (Stamp, u8);
    type Key = u8;

    fn name(&self) -> String {
        "peek".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, handle: &(Stamp, u8)) -> u8 {
        handle.1
    }

    fn register(&self, memory: &Memory, access: Access) -> hostbuf::register::Result<(Stamp, u8)> {
        let span = memory.require_host(|| self.name())?;
        let stamp = self.0.register(memory, access)?;
        // SAFETY: the test's own memory, mapped for all of it.
        Ok((stamp, unsafe { (span.start() as *const u8).read_volatile() }))
    }

    fn deregister(&self, memory: &Memory, handle: (Stamp, u8)) -> hostbuf::register::Result<()> {
        self.0.deregister(memory, handle.0)
    }
}

/// Requests memory while another thread discards it. The kernel reports a discard and performs it
/// after the monitor has read the event. A request in between registers the old pages, so no later
/// lease may be of that registration.
///
/// ```text
///   madvise:  event sent -- event read ------------- last page freed -- returns
///   get:                               ^ ^ ^ ^ ^ ^                      none of these is valid
/// ```
fn discard_while_others_ask(pages: usize, most: usize) {
    if let Probe::Missing(why) = MonitorMode::probe() {
        return skip(&format!("the strict monitor: {why}"));
    }
    let cache = RegistrationCache::new(
        Arc::new(FirstByteDevice(Fake::new(Overlap::Free))),
        MANY,
        MonitorMode::Strict,
    )
    .unwrap();
    let area = GuardedMapping::new(pages);
    let last = (area.at() + (pages - 1) * PAGE) as *const u8;
    let (mut stale, mut asked, mut discards) = (0, 0, 0);
    // With all cores in use a discard takes up to a second.
    for _ in rounds(10, most, Duration::from_secs(20)) {
        discards += 1;
        // SAFETY: the test's own memory.
        unsafe { area.pointer().cast_mut().write_bytes(1, area.len()) };
        drop(cache.get(last, PAGE, READ).unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: as above.
                unsafe { libc::madvise(area.at() as *mut _, area.len(), libc::MADV_DONTNEED) };
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) {
                drop(cache.get(last, PAGE, READ).unwrap());
                asked += 1;
            }
        });
        // The page is a new one, filled with zeros.
        stale += usize::from(cache.get(last, PAGE, READ).unwrap().key() == 1);
    }
    assert_eq!(stale, 0, "of {discards}: {:?}", cache.stats());
    assert!(asked > discards / 10, "{asked} requests in {discards} rounds: {:?}", cache.stats());
    // Afterwards the cache keeps the registration again.
    let begun = Instant::now();
    loop {
        let first = cache.get(last, PAGE, READ).unwrap().handle().0;
        if cache.get(last, PAGE, READ).unwrap().handle().0 == first {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", cache.stats());
    }
}

#[test]
fn no_request_registers_the_old_pages_of_a_long_discard() {
    discard_while_others_ask(16384, 50);
}

#[test]
fn no_request_registers_the_old_pages_of_a_short_discard() {
    discard_while_others_ask(64, 3000);
}

/// Other threads change memory of their own without a pause.
#[test]
fn requests_continue_while_other_memory_changes_without_pause() {
    let Some((fake, cache)) = strict() else { return };
    let area = GuardedMapping::new(1);
    drop(cache.get(area.pointer(), PAGE, READ).unwrap());
    let stop = AtomicBool::new(false);
    let changes = AtomicUsize::new(0);
    let slowest = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own = GuardedMapping::new(1);
                drop(cache.get(own.pointer(), PAGE, READ).unwrap());
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: the test's own page.
                    unsafe { libc::madvise(own.at() as *mut _, PAGE, libc::MADV_DONTNEED) };
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while changes.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        let mut slowest = Duration::ZERO;
        for _ in 0..300 {
            let begun = Instant::now();
            let lease = cache.get(area.pointer(), PAGE, READ).unwrap();
            slowest = slowest.max(begun.elapsed());
            assert!(fake.live().iter().any(|live| live.0 == lease.stamp().0));
        }
        stop.store(true, Ordering::Relaxed);
        slowest
    });
    // A request itself waits for a few milliseconds at most; the rest is the scheduling of the
    // other threads.
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert_eq!(cache.stats().unproven, 0);
}

/// Discards the page at `address` while the monitor reads events with the delay `late`, and calls
/// `meanwhile`.
fn while_a_page_is_being_discarded(late: Duration, address: usize, meanwhile: impl FnOnce()) {
    delays::delay_events(late);
    std::thread::scope(|scope| {
        let (begin, begins) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            begin.send(()).unwrap();
            // SAFETY: the test's own page.
            unsafe { libc::madvise(address as *mut _, PAGE, libc::MADV_DONTNEED) };
        });
        begins.recv().unwrap();
        meanwhile();
        delays::delay_events(Duration::ZERO);
    });
}

#[test]
fn try_get_does_not_wait_for_a_change_in_progress() {
    let Some((_, cache)) = strict() else { return };
    // The pages are in one mapping, so that one userfaultfd reports the changes of both.
    let area = GuardedMapping::new(2);
    drop(cache.get(area.pointer(), PAGE, READ).unwrap());
    assert!(cache.try_get(area.pointer(), PAGE, READ).is_some());
    while_a_page_is_being_discarded(Duration::from_secs(2), area.at() + PAGE, || {
        // Requests hit until the change begins.
        let begun = Instant::now();
        while cache.try_get(area.pointer(), PAGE, READ).is_some() {
            assert!(begun.elapsed() < Duration::from_millis(1900), "it has waited for the change to be over");
        }
        let begun = Instant::now();
        assert!(cache.try_get(area.pointer(), PAGE, READ).is_none());
        assert!(begun.elapsed() < Duration::from_secs(1));
    });
    let begun = Instant::now();
    while cache.try_get(area.pointer(), PAGE, READ).is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

/// A change that the monitor has not read yet does not delay requests for a mapping that another
/// userfaultfd watches.
#[test]
fn a_change_in_one_mapping_delays_no_hit_in_another() {
    let Some((_, cache)) = strict() else { return };
    let (area, same, other) = (GuardedMapping::new(1), GuardedMapping::new(2), GuardedMapping::new(1));
    for area in [&area, &same, &other] {
        drop(cache.get(area.pointer(), PAGE, READ).unwrap());
    }
    let stamp = cache.get(area.pointer(), PAGE, READ).unwrap().stamp();
    while_a_page_is_being_discarded(Duration::from_secs(2), same.at() + PAGE, || {
        // The change is in progress when the descriptor of its mapping reports it.
        while cache.try_get(same.pointer(), PAGE, READ).is_some() {
            std::hint::spin_loop();
        }
        let begun = Instant::now();
        for _ in 0..1000 {
            for area in [&area, &other] {
                assert!(cache.try_get(area.pointer(), PAGE, READ).is_some());
            }
        }
        assert_eq!(cache.get(area.pointer(), PAGE, READ).unwrap().stamp(), stamp);
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(cache.try_get(same.pointer(), PAGE, READ).is_none(), "the change is over");
    });
}

/// An error names busy memory as the reason why a registration cannot be validated.
#[test]
fn busy_memory_is_named_as_the_cause_of_a_refusal() {
    let Some((_, cache)) = crate::strict_with(Overlap::Refused, MANY) else { return };
    let area = GuardedMapping::new(2);
    crate::kept_one(&cache, area.pointer(), PAGE);
    let held = cache.get(area.pointer(), PAGE, READ).unwrap();
    while_a_page_is_being_discarded(Duration::from_secs(4), area.at() + PAGE, || {
        while cache.try_get(area.pointer(), PAGE, READ).is_some() {
            std::hint::spin_loop();
        }
        let why = cache.get(area.pointer(), PAGE, READ).map(drop).unwrap_err().to_string();
        assert!(why.contains("change memory of the same mapping without a pause"), "{why}");
    });
    drop(held);
    // A registration in use for another reason is not reported as busy.
    let held = cache.get(area.pointer(), PAGE, READ).unwrap();
    let why = cache.get(area.pointer(), 2 * PAGE, READ).map(drop).unwrap_err().to_string();
    assert!(why.contains("is registered and in use") && !why.contains("without a pause"), "{why}");
    drop(held);
}

/// get_timeout waits until its time limit, also with a device that refuses overlaps and with leased
/// memory that a later lookup could return.
#[test]
fn get_timeout_keeps_its_limit_while_memory_is_busy() {
    let Some((_, cache)) = crate::strict_with(Overlap::Refused, MANY) else { return };
    let area = GuardedMapping::new(2);
    let held = cache.get(area.pointer(), PAGE, READ).unwrap();
    // The shortest of several attempts counts, since a thread may wait for a core.
    let attempt = || {
        // SAFETY: the test's own page.
        unsafe { libc::madvise(area.at() as *mut _, PAGE, libc::MADV_DONTNEED) };
        let begun = Instant::now();
        let late = cache.get_timeout(area.pointer(), PAGE, READ, Duration::from_millis(5)).map(drop);
        // Without a time limit the request would wait for the lease.
        assert!(late.is_err(), "{late:?}");
        begun.elapsed()
    };
    let shortest = (0..10).map(|_| attempt()).min();
    assert!(shortest < Some(Duration::from_millis(90)), "{shortest:?}");
    drop(held);
}

/// Returns the mapping at `address`, and whether a userfaultfd watches it.
pub(crate) fn mapping_at(address: usize) -> (std::ops::Range<usize>, bool) {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut there = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let range = first
            .split_once('-')
            .map(|(start, end)| (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)));
        match range {
            Some((Ok(start), Ok(end))) => there = (start..end).contains(&address).then_some(start..end),
            _ if first == "VmFlags:" && there.is_some() => {
                return (there.unwrap(), words.any(|flag| flag == "uw"));
            }
            _ => {}
        }
    }
    panic!("{address:#x} is not mapped");
}

/// Pages that are discarded hundreds of times a second are not watched, so that requests in the
/// rest of their mapping hit. They are watched again when they are requested, or after the discards
/// end.
#[test]
fn a_page_that_is_purged_without_a_pause_does_not_delay_its_mapping() {
    if hostbuf_os::kernel::version() < (6, 11) {
        return skip("pages that are purged without a pause: PROCMAP_QUERY, Linux 6.11");
    }
    let Some((fake, cache)) = strict() else { return };
    let area = GuardedMapping::new(3);
    let (sent, purged) = (area.pointer(), area.at() + PAGE);
    let stamp = crate::kept_one(&cache, sent, PAGE);
    assert!(mapping_at(area.at()).1 && mapping_at(purged).1);
    let stop = AtomicBool::new(false);
    let timeout = Duration::from_secs(20);
    std::thread::scope(|scope| {
        let purger = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the test's own page.
                unsafe { libc::madvise(purged as *mut _, PAGE, libc::MADV_DONTNEED) };
            }
        });
        let begun = Instant::now();
        while mapping_at(purged).1 {
            drop(cache.get(sent, PAGE, READ).unwrap());
            assert!(begun.elapsed() < timeout, "{:?}", cache.stats());
        }
        assert!(mapping_at(area.at()).1 && mapping_at(area.at() + 2 * PAGE).1);
        // This range has never changed, and no change is reported.
        let begun = Instant::now();
        while cache.try_get(sent, PAGE, READ).is_none() {
            assert!(begun.elapsed() < timeout, "{:?}", cache.stats());
        }
        assert_eq!(crate::kept_one(&cache, sent, PAGE), stamp);
        // A request for the purged page gets a registration made for it.
        let made = fake.made();
        assert!(cache.get(purged as *const u8, PAGE, READ).unwrap().stamp().0 > made as u64);
        stop.store(true, Ordering::Relaxed);
        purger.join().unwrap();
    });
    // SAFETY: the test's own page.
    let discard = || unsafe { libc::madvise(purged as *mut _, PAGE, libc::MADV_DONTNEED) };
    let before = crate::kept_one(&cache, purged as *const u8, PAGE);
    assert_eq!(discard(), 0);
    assert_ne!(cache.get(purged as *const u8, PAGE, READ).unwrap().stamp(), before);
    // The kernel joins the mapping again, so that the program can move it.
    let begun = Instant::now();
    while mapping_at(purged) != (area.at()..area.at() + 3 * PAGE, true) {
        assert!(begun.elapsed() < timeout, "{:?}", mapping_at(purged));
        std::thread::yield_now();
    }
}

/// A mapping is not left in parts when its purging is over, even if nothing asks for the purged
/// page: the program can move it.
#[test]
fn a_mapping_is_joined_again_after_its_purging_ends() {
    if hostbuf_os::kernel::version() < (6, 11) {
        return skip("pages that are purged all the time: PROCMAP_QUERY, Linux 6.11");
    }
    let Some((_fake, cache)) = strict() else { return };
    let area = GuardedMapping::new(3);
    let (sent, purged) = (area.pointer(), area.at() + PAGE);
    crate::kept_one(&cache, sent, PAGE);
    let stop = AtomicBool::new(false);
    let timeout = Duration::from_secs(20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the test's own page.
                unsafe { libc::madvise(purged as *mut _, PAGE, libc::MADV_DONTNEED) };
            }
        });
        let begun = Instant::now();
        let mut watched = true;
        while watched && begun.elapsed() < timeout {
            drop(cache.get(sent, PAGE, READ).unwrap());
            watched = mapping_at(purged).1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(!watched, "{:?}", cache.stats());
    });
    let begun = Instant::now();
    while mapping_at(purged) != (area.at()..area.at() + 3 * PAGE, true) {
        assert!(begun.elapsed() < timeout, "{:?}", mapping_at(purged));
        std::thread::yield_now();
    }
}

/// Purges pages of a mapping on a device without overlapping registrations. A request inside a
/// leased range, which no other registration can serve, is not refused because other pages of the
/// mapping change.
#[test]
fn a_request_inside_a_lease_succeeds_however_busy_its_mapping_is() {
    let Some((_, cache)) = crate::strict_with(Overlap::Refused, MANY) else { return };
    let area = GuardedMapping::new(4);
    let stamp = crate::kept_one(&cache, area.pointer(), 2 * PAGE);
    let held = cache.get(area.pointer(), 2 * PAGE, READ).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let purgers: Vec<_> = (2..4)
            .map(|page| {
                let (stop, at) = (&stop, area.at() + page * PAGE);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // SAFETY: the test's own page.
                        unsafe { libc::madvise(at as *mut _, PAGE, libc::MADV_DONTNEED) };
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        let mut requests = 0;
        while requests < 1000 || begun.elapsed() < Duration::from_secs(1) {
            let lease = cache.get(area.pointer(), PAGE, READ);
            if lease.as_ref().map(Stamped::stamp).ok() != Some(stamp) {
                stop.store(true, Ordering::Relaxed);
                panic!("{lease:?}: {:?}", cache.stats());
            }
            requests += 1;
        }
        stop.store(true, Ordering::Relaxed);
        purgers.into_iter().for_each(|purger| purger.join().unwrap());
    });
    drop(held);
}
