//! The heap, and other memory that moves while it is registered: no call hangs, and no lease is of
//! old memory. The kernel blocks a thread that frees memory until the monitor has read the event,
//! so no thread that the monitor needs may wait for a thread that frees.

#![allow(unsafe_code, reason = "the tests allocate and free registered memory")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{Budget, Overlap};

use crate::memory::PAGE;
use crate::{FakeCache, MANY, READ, Stamped, at, explicit, kept_one, strict, strict_with};

const BUSY: Duration = Duration::from_millis(1200);
/// The time after which a test that has not done enough gives up.
const TIMEOUT: Duration = Duration::from_secs(90);
/// The time for which a change may be under way before the monitor counts its descriptor as
/// unsound.
const STUCK: Duration = Duration::from_secs(1);

/// Takes a lease of memory that was mapped after `made` registrations, so the lease must be of a
/// later one.
#[track_caller]
fn fresh(cache: &FakeCache, made: usize, start: usize, length: usize) {
    match cache.get(start as *const u8, length, READ) {
        Ok(lease) => {
            assert!(lease.stamp().0 > made as u64, "{lease:?}, number {}, of {made} before", lease.stamp().0);
        }
        Err(hostbuf::register::Error::Budget { leased: true, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Gets blocks from the C library with different settings: each from mmap, or from the break, which
/// is moved back at once.
fn blocks(large: bool) {
    let budget = Budget::new(6).bytes(64 << 20);
    let Some((fake, cache)) = strict_with(Overlap::Free, budget) else { return };
    // SAFETY: settings of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, if large { 64 << 10 } else { 1 << 30 });
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4096);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
    let begun = Instant::now();
    let rounds = AtomicUsize::new(0);
    let longest = std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3usize].map(|thread| {
            let (cache, fake, rounds) = (&cache, &fake, &rounds);
            // With few cores it takes longer until enough has happened. The number of blocks for
            // each change depends on the scheduling of the threads.
            let is_enough = || rounds.load(Ordering::Relaxed) > 200 && cache.stats().changed > 20;
            scope.spawn(move || {
                let (mut n, mut longest) = (thread, Duration::ZERO);
                while begun.elapsed() < BUSY || (!is_enough() && begun.elapsed() < TIMEOUT) {
                    n = (n * 31 + 17) % 101;
                    let allocated = Instant::now();
                    one_block(cache, fake, large, (100 << 10) + n * 5000);
                    longest = longest.max(allocated.elapsed());
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                longest
            })
        });
        threads.map(|thread| thread.join().unwrap()).into_iter().max().unwrap()
    });
    let rounds = rounds.into_inner();
    assert!(rounds > 200, "{rounds}");
    let stats = cache.stats();
    assert!(stats.changed > 20, "{stats:?}");
    // The change of a thread that frees memory lasts until that thread has a core again. If that
    // takes longer than the monitor allows, memory is registered for its leases only.
    assert!(stats.unproven == 0 || longest > STUCK, "{longest:?}, {stats:?}");
    drop(cache);
    assert!(fake.live().is_empty());
}

/// Takes a lease of a block. One that has a mapping of its own, where `mapped` blocks may be had,
/// was not there before `made` registrations were. The C library marks such a block in the word
/// before it (IS_MMAPPED); one from the end of a thread's arena may begin behind the edge of a page
/// as well.
#[track_caller]
fn lease(cache: &FakeCache, mapped: bool, made: usize, block: *mut libc::c_void, length: usize) {
    const IS_MMAPPED: usize = 2;
    // SAFETY: the header of a block that was allocated.
    let header = unsafe { *block.cast::<usize>().sub(1) };
    let of_its_own = mapped && header & IS_MMAPPED != 0;
    fresh(cache, if of_its_own { made } else { 0 }, block as usize, length);
}

/// Allocates a block, registers it, grows it, registers it again, shrinks it and frees it.
fn one_block(cache: &FakeCache, fake: &Fake, mapped: bool, length: usize) {
    let made = fake.made();
    // SAFETY: a block of the test's own, used within its length.
    unsafe {
        let block = libc::malloc(length);
        block.cast::<u8>().write_bytes(1, length);
        lease(cache, mapped, made, block, length);
        let made = fake.made();
        let grown = libc::realloc(block, 3 * length);
        grown.cast::<u8>().write_bytes(1, 3 * length);
        if grown != block {
            lease(cache, mapped, made, grown, 3 * length);
        }
        let shrunk = libc::realloc(grown, length / 2);
        drop(cache.get(shrunk as *const u8, length / 2, READ));
        libc::free(shrunk);
    }
}

#[test]
fn mapped_malloc_blocks_are_never_stale() {
    blocks(true);
}

#[test]
fn malloc_blocks_of_a_trimmed_heap_are_never_stale() {
    blocks(false);
}

/// A partly cached range is moved, grown and shrunk.
#[test]
fn moved_and_grown_mappings_are_never_stale() {
    let Some((fake, cache)) = strict() else { return };
    let (begun, moved) = (Instant::now(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let (cache, fake, moved) = (&cache, &fake, &moved);
            scope.spawn(move || {
                let (rw, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                let mut rounds = 0;
                while begun.elapsed() < BUSY || rounds < 20 {
                    rounds += 1;
                    let pages = 8 + (rounds + thread) % 8;
                    // SAFETY: a mapping of the test's own.
                    unsafe {
                        let made = fake.made();
                        let area = libc::mmap(null_mut(), pages * PAGE, rw, flags, -1, 0);
                        assert_ne!(area, libc::MAP_FAILED);
                        // Registers the middle of the range.
                        fresh(cache, made, area as usize + 2 * PAGE, 3 * PAGE);
                        let made = fake.made();
                        let grown = libc::mremap(area, pages * PAGE, 4 * pages * PAGE, libc::MREMAP_MAYMOVE);
                        if grown == libc::MAP_FAILED {
                            // A known limit: the range is watched in part for a moment if other
                            // threads map beside it. Then the kernel refuses to move it, and all of
                            // it stays.
                            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
                            assert_eq!(libc::munmap(area, pages * PAGE), 0);
                            continue;
                        }
                        moved.fetch_add(1, Ordering::Relaxed);
                        if grown != area {
                            fresh(cache, made, grown as usize + 2 * PAGE, 3 * PAGE);
                        }
                        let end = grown as usize + 4 * pages * PAGE;
                        drop(cache.get((end - 2 * PAGE) as *const u8, 2 * PAGE, READ).unwrap());
                        let shrunk = libc::mremap(grown, 4 * pages * PAGE, pages * PAGE, 0);
                        assert_eq!(shrunk, grown);
                        libc::munmap(shrunk, pages * PAGE);
                    }
                }
            });
        }
    });
    assert!(moved.into_inner() > 20);
    drop(cache);
    assert!(fake.live().is_empty());
}

/// After realloc shrinks a block, leases of the tail are gone and those of the head remain.
#[test]
fn realloc_keeps_the_head_of_a_shrunk_block_and_ends_its_tail() {
    let Some((_, cache)) = strict() else { return };
    const LARGE: usize = 40 << 20;
    // SAFETY: a block of the test's own.
    unsafe {
        let block = libc::malloc(LARGE);
        let tail = (block as usize + LARGE / 2).next_multiple_of(PAGE) as *const u8;
        let head = kept_one(&cache, block.cast(), PAGE);
        kept_one(&cache, tail, PAGE);
        let shrunk = libc::realloc(block, LARGE / 4);
        assert_eq!(shrunk, block);
        assert!(cache.try_get(tail, PAGE, READ).is_none());
        assert_eq!(cache.get(block.cast(), PAGE, READ).unwrap().stamp(), head);
        libc::free(shrunk);
    }
    // The thread that unmaps memory continues once the monitor has read the event, shortly before
    // the monitor applies it.
    while cache.stats().changed < 2 {
        std::thread::yield_now();
    }
    assert_eq!(cache.stats().changed, 2);
}

/// Threads that outlive caches drop their data about them.
#[test]
fn dropped_caches_leave_nothing_in_threads() {
    let mapped = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let (ask, asked) = mpsc::channel::<Arc<FakeCache>>();
    let (answer, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for cache in asked {
                drop(cache.get(at(0x1000), 8, READ).unwrap());
                drop(cache);
                answer.send(()).unwrap();
            }
        });
        let mut sizes = Vec::new();
        for _ in 0..30 {
            let cache = Arc::new(explicit(MANY.registrations(1 << 16)).1);
            drop(cache.get(at(0x1000), 8, READ).unwrap());
            ask.send(cache.clone()).unwrap();
            answered.recv().unwrap();
            drop(cache);
            sizes.push(mapped());
        }
        drop(ask);
        assert!(sizes[29] < sizes[9] + (16 << 20), "{sizes:?}");
    });
}

/// Returns the number of requests, out of `requests` sequential ones, that are registered for their
/// leases only.
fn leased_only(requests: usize, mut request: impl FnMut(&FakeCache)) -> Option<usize> {
    let (_, cache) = strict()?;
    for _ in 0..requests {
        request(&cache);
    }
    let stats = cache.stats();
    assert_eq!((stats.unproven, stats.unwatched, stats.unwatchable), (0, 0, 0), "{stats:?}");
    Some(stats.busy as usize)
}

/// The C library reuses the stack of an ended thread for the next one.
#[test]
fn reused_thread_stacks_stay_registered() {
    let sends = |cache: &FakeCache| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let message = [1u8; 2 * PAGE];
                drop(cache.get(message.as_ptr(), message.len(), READ).unwrap());
            });
        });
    };
    let Some(leased_only) = leased_only(300, sends) else { return };
    assert!(leased_only <= 30, "{leased_only} of 300");
}

/// A heap that discards free pages immediately and reuses them at once.
#[test]
fn blocks_of_a_scavenging_heap_stay_registered() {
    let area = crate::memory::GuardedMapping::new(16);
    let mut n = 0;
    let sends = |cache: &FakeCache| {
        n = (n * 5 + 3) % 16;
        let block = area.at() + n * PAGE;
        // SAFETY: the test's own page.
        unsafe {
            libc::madvise(block as *mut _, PAGE, libc::MADV_DONTNEED);
            (block as *mut u8).write_bytes(1, PAGE);
        }
        drop(cache.get(block as *const u8, PAGE, READ).unwrap());
    };
    let Some(leased_only) = leased_only(200, sends) else { return };
    assert!(leased_only <= 20, "{leased_only} of 200");
}
