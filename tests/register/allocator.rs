//! The allocator of this test program. In a thread that requests it, each call returns a watched
//! page to the kernel, as any allocator may. The allocator also counts the calls of the monitor's
//! thread: a monitor that frees memory could wait for itself.

#![allow(unsafe_code, reason = "an allocator is unsafe to implement, and this one discards pages")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hostbuf::register::{MonitorMode, Overlap, Probe};

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::unsound_monitor::is_alone;
use crate::{MANY, READ, kept_one, skip, strict, strict_with};

struct ObservingAllocator;

thread_local! {
    /// The page that this thread discards; 0 for none.
    static GIVEN_BACK: Cell<usize> = const { Cell::new(0) };
    /// True in the threads that run tests.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// The thread whose calls are counted; 0 for none.
static OBSERVED: AtomicI32 = AtomicI32::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// True while calls of other threads than the tests' are slow.
static SLOW: AtomicBool = AtomicBool::new(false);
/// The number of slow calls, the number of slow calls in progress, and the number of calls of the
/// test meanwhile.
static SLOW_CALLS: AtomicUsize = AtomicUsize::new(0);
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
static MEANWHILE: AtomicUsize = AtomicUsize::new(0);

/// Makes the calling thread discard a page with each call of the allocator from now on; 0 for none.
pub fn give_back_with_each_call(page: usize) {
    GIVEN_BACK.set(page);
}

fn called() {
    let page = GIVEN_BACK.try_with(Cell::get).unwrap_or(0);
    if page != 0 {
        // SAFETY: a page of a test's own.
        unsafe { libc::madvise(page as *mut _, PAGE, libc::MADV_DONTNEED) };
    }
    let observed = OBSERVED.load(Ordering::Relaxed);
    // SAFETY: no operands.
    if observed != 0 && unsafe { libc::gettid() } == observed {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    if SLOW.load(Ordering::Relaxed) {
        if OWN.try_with(Cell::get).unwrap_or(true) {
            // A new thread has reached its first call by then.
            std::thread::sleep(Duration::from_millis(5));
            MEANWHILE.fetch_add(UNDER_WAY.load(Ordering::SeqCst), Ordering::SeqCst);
        // The main thread waits for the test and is not slowed.
        // SAFETY: no operands.
        } else if unsafe { libc::gettid() != libc::getpid() } {
            SLOW_CALLS.fetch_add(1, Ordering::SeqCst);
            UNDER_WAY.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

// SAFETY: every call goes to `System`, which keeps the contract; `called` neither allocates nor
// unwinds.
unsafe impl GlobalAlloc for ObservingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        called();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        called();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: ObservingAllocator = ObservingAllocator;

/// Changes memory in every way that is reported, with many registrations of it, some of them
/// leased, in two caches. Also makes the monitor give up busy pages and watch them again.
#[test]
fn the_monitors_thread_neither_allocates_nor_frees() {
    if !is_alone("allocator::the_monitors_thread_neither_allocates_nor_frees") {
        return;
    }
    let Some((_, cache)) = strict() else { return };
    let Some((_, small)) = strict_with(Overlap::Refused, MANY.registrations(8)) else { return };
    let thread = crate::descriptors::monitors_thread().rsplit('/').next().unwrap().parse().unwrap();
    OBSERVED.store(thread, Ordering::Relaxed);
    for round in 0..20 {
        let area = GuardedMapping::new(256);
        let page = |n: usize| (area.at() + n * PAGE) as *const u8;
        // On a busy machine several requests may be needed.
        (0..256).for_each(|n| {
            kept_one(&cache, page(n), PAGE);
        });
        let leases = (0..256).map(|n| cache.get(page(n), PAGE, READ).unwrap()).collect::<Vec<_>>();
        (0..8).for_each(|n| drop(small.get(page(2 * n), PAGE, READ)));
        // SAFETY: the test's own pages.
        unsafe {
            libc::madvise(area.at() as *mut _, 64 * PAGE, libc::MADV_DONTNEED);
            libc::madvise((area.at() + 64 * PAGE) as *mut _, 64 * PAGE, libc::MADV_FREE);
            // Discards every other page, so that there are many events at a time.
            for n in (128..160).step_by(2) {
                map_over(area.at() + n * PAGE, PAGE);
            }
            let moved =
                libc::mremap((area.at() + 192 * PAGE) as *mut _, 8 * PAGE, 16 * PAGE, libc::MREMAP_MAYMOVE);
            assert_ne!(moved, libc::MAP_FAILED);
            libc::munmap(moved, 16 * PAGE);
        }
        map_over(area.at(), area.len());
        assert!(cache.try_get(page(round), PAGE, READ).is_none());
        drop(leases);
    }
    // The last change returns when the monitor has read its event, which is before it is counted.
    let begun = Instant::now();
    while cache.stats().changed < 20 * 256 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", cache.stats());
        std::thread::yield_now();
    }
    if hostbuf_os::kernel::version() >= (6, 11) {
        purged_and_watched_again(&cache);
    }
    OBSERVED.store(0, Ordering::Relaxed);
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "calls of the allocator in the monitor's thread");
}

/// Purges a page until the monitor gives it up, and waits until the monitor watches it again.
fn purged_and_watched_again(cache: &crate::FakeCache) {
    let area = GuardedMapping::new(3);
    let begun = Instant::now();
    let in_time =
        |what: &str| assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", cache.stats());
    let purged = area.at() + PAGE;
    kept_one(cache, area.pointer(), PAGE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the test's own page.
                unsafe { libc::madvise(purged as *mut _, PAGE, libc::MADV_DONTNEED) };
            }
        });
        while crate::busy_memory::mapping_at(purged).1 {
            drop(cache.get(area.pointer(), PAGE, READ).unwrap());
            in_time("it is given up");
        }
        stop.store(true, Ordering::Relaxed);
    });
    while !crate::busy_memory::mapping_at(purged).1 {
        std::thread::yield_now();
        in_time("it is watched again");
    }
}

/// The monitor's thread makes its first allocations before memory is watched. Its calls of the
/// allocator are slow here, and the thread that starts the monitor allocates again only after they
/// have returned.
#[test]
fn the_monitors_thread_has_allocated_before_memory_is_watched() {
    if !is_alone("allocator::the_monitors_thread_has_allocated_before_memory_is_watched") {
        return;
    }
    OWN.set(true);
    SLOW.store(true, Ordering::SeqCst);
    let probe = MonitorMode::probe();
    SLOW.store(false, Ordering::SeqCst);
    match probe {
        Probe::Missing(why) => skip(&format!("the strict monitor: {why}")),
        Probe::Ready(_) => {
            assert_ne!(SLOW_CALLS.load(Ordering::SeqCst), 0, "the monitor's thread does not allocate at all");
            assert_eq!(MEANWHILE.load(Ordering::SeqCst), 0, "calls while the monitor's thread allocated");
        }
    }
}
