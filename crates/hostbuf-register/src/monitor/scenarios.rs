//! Tests of the monitor against the kernel, without a cache.

#![allow(unsafe_code, reason = "the tests change mappings of their own")]

use std::ops::Range;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use super::change_sequence::{ChangeSequence, Unchanged};
use super::current::start_tested;
use super::descriptor_set::DescriptorSet;
use super::monitor_shared::MonitorShared;
use super::process_monitor::ProcessMonitor;
use super::userfaultfd::FEATURES;
use crate::span::Span;
use hostbuf_os::{kernel, memory};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a monitor that only the test uses.
fn started() -> Option<ProcessMonitor> {
    match start_tested(FEATURES) {
        Ok(monitor) => Some(monitor),
        Err(why) => {
            eprintln!("skipped: the strict monitor: {why}");
            None
        }
    }
}

fn page() -> usize {
    memory::page_size() as usize
}

/// Returns the mappings of this process, and whether a userfaultfd watches them, as the kernel
/// says.
fn mappings() -> Vec<(Range<usize>, bool)> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut mappings: Vec<(Range<usize>, bool)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let number = |text| usize::from_str_radix(text, 16).ok();
        let range = first.split_once('-').and_then(|(start, end)| Some(number(start)?..number(end)?));
        match (range, mappings.last_mut()) {
            (Some(range), _) => mappings.push((range, false)),
            (None, Some((_, watched))) if first == "VmFlags:" => *watched = words.any(|flag| flag == "uw"),
            _ => {}
        }
    }
    mappings
}

/// Private memory between two pages without access, so that the kernel joins it with nothing.
struct TestArea(Span);

impl TestArea {
    fn new(pages: usize) -> TestArea {
        let (length, flags) = (pages * page(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, of which only the inner part is made accessible.
        let start = unsafe {
            let base = libc::mmap(null_mut(), length + 2 * page(), libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let start = base.byte_add(page());
            assert_eq!(libc::mprotect(start, length, libc::PROT_READ | libc::PROT_WRITE), 0);
            start as usize
        };
        TestArea(Span::new(start, length).unwrap())
    }

    fn page(&self, number: usize) -> Span {
        self.pages(number..number + 1)
    }

    fn pages(&self, numbers: Range<usize>) -> Span {
        Span::new(self.0.start() + numbers.start * page(), numbers.len() * page()).unwrap()
    }

    /// Returns the mappings of this memory, and whether a userfaultfd watches them.
    fn mappings(&self) -> Vec<(Range<usize>, bool)> {
        let is_inside = |range: &Range<usize>| self.0.start() <= range.start && range.end <= self.0.end();
        mappings().into_iter().filter(|(range, _)| is_inside(range)).collect()
    }

    fn is_watched(&self, span: Span) -> bool {
        let mappings = self.mappings();
        mappings
            .iter()
            .any(|(range, watched)| *watched && range.start < span.end() && span.start() < range.end)
    }
}

impl Drop for TestArea {
    fn drop(&mut self) {
        // SAFETY: the area's own pages, and those beside it.
        unsafe { libc::munmap((self.0.start() - page()) as *mut _, self.0.len() + 2 * page()) };
    }
}

/// Watches memory, and returns the number of the descriptor.
fn watch(monitor: &ProcessMonitor, span: Span) -> usize {
    let begun = Instant::now();
    loop {
        match monitor.watch(span) {
            Ok(watched) => return watched.descriptors.iter().next().unwrap(),
            Err(why) => assert!(begun.elapsed() < TIMEOUT, "{why:?}"),
        }
    }
}

/// Records as many discards at `time` as make a range busy.
fn discard_often(shared: &MonitorShared, span: Span, number: usize, time: Instant) {
    let mut ranges = shared.ranges.lock().ignore_poison();
    while !ranges.busy.discard(span, number, time) {}
}

/// Unwatches pages as busy ones whose pause is over by now. The monitor does not watch them again
/// until it is woken.
fn give_up_until_now(shared: &MonitorShared, spans: &[Span], number: usize) {
    let before = Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine has run for so long");
    for &span in spans {
        discard_often(shared, span, number, before);
        assert_eq!(shared.ranges.lock().ignore_poison().busy.give_up(number, before), Some(span));
    }
    shared.unwatch(&spans.iter().map(|&span| (span, number)).collect::<Vec<_>>());
}

/// Before Linux 6.17 a userfaultfd could unregister the ranges of another one. So while one
/// descriptor unwatches memory, no hit relies on any descriptor, and afterwards each sequence has
/// advanced.
#[test]
fn unwatching_invalidates_all_descriptors() {
    let Some(monitor) = started() else { return };
    let (shared, area) = (&monitor.shared, TestArea::new(1));
    let number = watch(&monitor, area.0);
    let sequences = monitor.sequences();
    let all = || sequences.all().iter().map(|number| sequences.of(number));
    let before: Vec<u64> = all().map(ChangeSequence::read).collect();
    std::thread::scope(|scope| {
        let applying = shared.applying.lock().ignore_poison();
        let unwatching = scope.spawn(|| shared.unwatch(&[(area.0, number)]));
        // The kernel has unregistered the range, and no cache has been notified.
        let begun = Instant::now();
        while area.is_watched(area.0) {
            assert!(begun.elapsed() < TIMEOUT);
        }
        let relied_on = all().filter(|one| one.check(one.read()) == Unchanged::Yes).count();
        drop(applying);
        unwatching.join().unwrap();
        assert_eq!(relied_on, 0);
    });
    assert!(all().zip(before).all(|(one, before)| one.read() > before));
    assert!(monitor.settle(sequences.all()));
}

/// One descriptor unwatches a range of which another one watches a part. Since Linux 6.17 the
/// kernel refuses that part, so the monitor must record that it is still watched.
#[test]
fn a_part_watched_by_another_descriptor_is_unwatched_at_shutdown() {
    // The area is mapped first: memory that the self-test has unmapped is unwatched at shutdown in
    // any case.
    let area = TestArea::new(2);
    let Some(monitor) = started() else { return };
    let shared = monitor.shared.clone();
    if monitor.sequences().all() == DescriptorSet::of(0) {
        return eprintln!("skipped: memory of two userfaultfds: the monitor has one");
    }
    for number in [0, 1] {
        monitor.sequences().of(number).userfault.register(area.page(number)).unwrap();
    }
    shared.unwatch(&[(area.0, 0)]);
    assert!(!area.is_watched(area.page(0)));
    let stays = area.is_watched(area.page(1));
    assert!(stays || kernel::version() < (6, 17));
    // The descriptors stay open here, so only the shutdown itself unwatches memory.
    drop(monitor);
    let is_watched = area.is_watched(area.0);
    drop(shared);
    assert!(!is_watched);
}

/// The pause of busy pages ends while the monitor stops, after it has unwatched the first of them.
#[test]
fn no_page_is_watched_again_during_shutdown() {
    for round in 0..12 {
        let Some(monitor) = started() else { return };
        // The descriptors stay open here, so memory that is watched at the end remains so.
        let shared = monitor.shared.clone();
        // Each area is a mapping of its own: an unwatched part of a mapping would merge with the
        // rest once that is unwatched, and would not be watched again.
        let areas: Vec<TestArea> = (0..200).map(|_| TestArea::new(1)).collect();
        for area in &areas {
            give_up_until_now(&shared, &[area.0], watch(&monitor, area.0));
        }
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while begun.elapsed() < round * Duration::from_micros(100) {
                    std::hint::spin_loop();
                }
                shared.wake.write(1).unwrap();
            });
            drop(monitor);
        });
        let there = mappings();
        let is_watched = |area: &&TestArea| {
            there.iter().any(|(range, watched)| *watched && range.contains(&area.0.start()))
        };
        let watched = areas.iter().filter(is_watched).count();
        // Unmapping a watched area would block as long as the descriptors are open.
        drop(shared);
        assert_eq!(watched, 0, "round {round}");
    }
}

/// The monitor stops after the pause of a busy page has ended and before the page is watched again.
#[test]
fn a_page_about_to_be_watched_again_is_unwatched_at_shutdown() {
    let Some(monitor) = started() else { return };
    let (shared, area) = (monitor.shared.clone(), TestArea::new(1));
    give_up_until_now(&shared, &[area.0], watch(&monitor, area.0));
    monitor.delays().requests.set(Duration::from_millis(200));
    shared.wake.write(1).unwrap();
    // By then the monitor has taken the page. If not, the test shows nothing, and does not fail
    // either.
    std::thread::sleep(Duration::from_millis(50));
    drop(monitor);
    let is_watched = area.is_watched(area.0);
    // Unmapping the watched area would block as long as the descriptors are open.
    drop(shared);
    assert!(!is_watched);
}

/// Two adjacent pages that are not watched are one mapping to the kernel, which neither of them is
/// alone.
#[test]
fn adjacent_busy_pages_are_watched_again() {
    if kernel::version() < (6, 11) {
        return eprintln!("skipped: busy pages: PROCMAP_QUERY, Linux 6.11");
    }
    let Some(monitor) = started() else { return };
    let area = TestArea::new(4);
    let number = watch(&monitor, area.0);
    give_up_until_now(&monitor.shared, &[area.page(1), area.page(2)], number);
    let at = |number: usize| area.0.start() + number * page();
    assert_eq!(area.mappings(), [(at(0)..at(1), true), (at(1)..at(3), false), (at(3)..at(4), true)]);
    monitor.shared.wake.write(1).unwrap();
    let begun = Instant::now();
    while area.mappings() != [(at(0)..at(4), true)] {
        assert!(begun.elapsed() < TIMEOUT, "{:x?}", area.mappings());
        std::thread::yield_now();
    }
}

/// A request that finds a descriptor busy unwatches the currently busy pages: neither pages that
/// were busy long ago, nor memory that is mapped where busy pages were unmapped.
#[test]
fn only_currently_busy_pages_are_unwatched() {
    if kernel::version() < (6, 11) {
        return eprintln!("skipped: busy pages: PROCMAP_QUERY, Linux 6.11");
    }
    let Some(monitor) = started() else { return };
    let (shared, area) = (&monitor.shared, TestArea::new(3));
    let number = watch(&monitor, area.0);
    let give_up = || {
        monitor.sequences().of(number).set_busy(true);
        shared.give_up_busy(number);
    };
    let before = Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine has run for so long");
    discard_often(shared, area.page(0), number, before);
    give_up();
    assert_eq!(area.mappings(), [(area.0.start()..area.0.end(), true)], "long ago");

    discard_often(shared, area.page(1), number, Instant::now());
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page belongs to the test.
    unsafe {
        let over = libc::mmap(
            area.page(1).start() as *mut _,
            page(),
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        assert_ne!(over, libc::MAP_FAILED);
    }
    assert!(monitor.settle(DescriptorSet::of(number)));
    monitor.sequences().of(number).userfault.register(area.page(1)).unwrap();
    give_up();
    assert_eq!(area.mappings(), [(area.0.start()..area.0.end(), true)], "unmapped");

    discard_often(shared, area.page(1), number, Instant::now());
    give_up();
    assert_eq!(area.mappings().len(), 3, "busy");
}

/// A monitor that does not get one of the events must fail its self-test.
#[test]
fn a_monitor_without_an_event_fails_its_self_test_and_names_the_change() {
    const REMAP: u64 = 1 << 2;
    const REMOVE: u64 = 1 << 3;
    const UNMAP: u64 = 1 << 6;
    if let Err(why) = start_tested(FEATURES) {
        return eprintln!("skipped: the strict monitor: {why}");
    }
    for (blind, ways) in [
        (REMOVE, vec!["madvise"]),
        (UNMAP, vec!["mmap over it", "munmap"]),
        (REMAP, vec!["mremap", "mremap that leaves the mapping"]),
        (REMOVE | UNMAP | REMAP, vec!["madvise"]),
    ] {
        assert_eq!(FEATURES & blind, blind);
        let why = start_tested(FEATURES & !blind).err().expect("it passed its self-test without an event");
        assert!(why.contains("failed its self-test"), "{why}");
        assert!(ways.iter().any(|way| why.contains(&format!(": {way}: "))), "without {blind:#x}: {why}");
    }
}
