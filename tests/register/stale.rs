//! Stale hits: after any change of the memory at an address, the next request registers again.

#![allow(unsafe_code, reason = "the tests change the mappings of registered memory")]

use std::ptr::null_mut;
use std::time::Duration;

use hostbuf::register::testing::delays;
use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{Budget, MonitorMode, Overlap, RegistrationCache};
use hostbuf_tests::eventually;

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{MANY, READ, Stamped, cache, rounds, skip, strict, strict_with};

/// Registers eight pages, changes them by `change`, and checks that the next request gets a new
/// registration: with each kind of device, and with a budget that cannot hold the old and the new
/// one together.
#[track_caller]
pub fn changed_by(what: &str, change: impl Fn(usize, usize)) {
    for (overlap, budget) in
        [(Overlap::Free, MANY), (Overlap::Refused, MANY), (Overlap::Free, Budget::new(1).bytes(8 * PAGE))]
    {
        let Some((fake, cache)) = strict_with(overlap, budget) else { return };
        changed_in(&fake, cache, what, &change);
    }
}

#[track_caller]
fn changed_in(fake: &Fake, cache: RegistrationCache<Fake>, what: &str, change: &impl Fn(usize, usize)) {
    for round in 0..50 {
        let area = GuardedMapping::new(8);
        let get = || cache.get(area.pointer(), area.len(), READ).unwrap().stamp();
        // The cache keeps the registration: unchanged memory hits. On a busy machine the monitor
        // may confirm that too late. That is counted, and the request is repeated.
        let (mut busy, mut before) = (cache.stats().busy, get());
        while get() != before {
            let now = cache.stats().busy;
            assert!(now > busy, "{what}: {:?}", cache.stats());
            (busy, before) = (now, get());
        }
        change(area.at(), area.len());
        // Neither a request for a part nor one for all of it hits.
        if let Some(lease) = cache.try_get(area.pointer(), PAGE, READ) {
            panic!("{what}, round {round}: {lease:?} is stale");
        }
        let after = cache.get(area.pointer(), area.len(), READ).unwrap().stamp();
        assert_ne!(after, before, "{what}, round {round}");
        drop(area);
    }
    let stats = cache.stats();
    assert!(stats.changed >= 50 && stats.unwatchable == 0, "{what}: {stats:?}");
    drop(cache);
    assert!(fake.live().is_empty());
}

/// Memory is unmapped, and new memory that another userfaultfd watches is mapped at its address,
/// before the cache learns of the unmap.
#[test]
fn a_mapping_that_another_descriptor_watches_is_not_served_by_the_old_registration() {
    let Some((_, cache)) = strict() else { return };
    for round in 0..5 {
        let area = GuardedMapping::new(1);
        let before = crate::kept_one(&cache, area.pointer(), PAGE);
        // Longer than the time for which a request waits for the monitor's thread.
        delays::delay_notifications(Duration::from_millis(60));
        map_over(area.at(), PAGE);
        let now = cache.get(area.pointer(), PAGE, READ).unwrap().stamp();
        delays::delay_notifications(Duration::ZERO);
        assert_ne!(now, before, "round {round}: a registration of memory that is gone");
    }
}

#[test]
fn munmap_and_a_new_mapping_end_the_registration() {
    changed_by("munmap", |at, length| {
        // SAFETY: the test's own pages.
        assert_eq!(unsafe { libc::munmap(at as *mut _, length) }, 0);
        map_over(at, length);
    });
}

#[test]
fn mmap_over_a_range_ends_the_registration() {
    changed_by("MAP_FIXED", map_over);
    changed_by("MAP_FIXED over one page", |at, _| map_over(at + 3 * PAGE, PAGE));
}

#[test]
fn raw_system_calls_end_the_registration() {
    changed_by("munmap by syscall", |at, length| {
        // SAFETY: as above, past the C library.
        assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, at, length) }, 0);
        map_over(at, length);
    });
    changed_by("madvise by syscall", |at, length| {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::syscall(libc::SYS_madvise, at, length, libc::MADV_DONTNEED) }, 0);
    });
    changed_by("MAP_FIXED by syscall", |at, length| {
        let (rw, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: as above.
        let got = unsafe { libc::syscall(libc::SYS_mmap, at, length, rw, flags, -1, 0) };
        assert_eq!(got as usize, at);
    });
}

#[test]
fn mremap_away_and_back_ends_the_registration() {
    changed_by("mremap from", |at, length| {
        // SAFETY: moved to an area of the test's own and back: other pages come to no harm.
        unsafe {
            let elsewhere = libc::mmap(
                null_mut(),
                length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            assert_eq!(libc::mremap(at as *mut _, length, length, flags, elsewhere), elsewhere);
            map_over(at, length);
            libc::munmap(elsewhere, length);
        }
    });
}

#[test]
fn mremap_with_dontunmap_ends_the_registration() {
    changed_by("mremap DONTUNMAP", |at, length| {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // SAFETY: the test's own pages are moved elsewhere, and unmapped there.
        unsafe {
            let moved = libc::mremap(at as *mut _, length, length, flags, null_mut::<libc::c_void>());
            assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            libc::munmap(moved, length);
        }
    });
}

#[test]
fn mremap_onto_a_range_ends_the_registration() {
    changed_by("mremap onto", |at, length| {
        // SAFETY: new pages, moved over the test's own.
        unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let fresh = libc::mmap(null_mut(), length, rw, flags, -1, 0);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            assert_eq!(libc::mremap(fresh, length, length, flags, at as *mut libc::c_void) as usize, at);
        }
    });
}

#[test]
fn every_discarding_madvise_ends_the_registration() {
    const DONTNEED_LOCKED: i32 = 24;
    for (name, advice) in
        [("DONTNEED", libc::MADV_DONTNEED), ("DONTNEED_LOCKED", DONTNEED_LOCKED), ("FREE", libc::MADV_FREE)]
    {
        changed_by(name, |at, _| {
            // SAFETY: discards one page of the test's own.
            assert_eq!(unsafe { libc::madvise((at + PAGE) as *mut _, PAGE, advice) }, 0, "{name}");
        });
    }
}

/// Only this call discards locked pages.
#[test]
fn dontneed_locked_ends_the_registration() {
    const DONTNEED_LOCKED: i32 = 24;
    changed_by("DONTNEED_LOCKED of locked pages", |at, length| {
        // SAFETY: the test's own pages, few enough for every limit.
        unsafe {
            // Sanitizers replace the C library's allocator.
            assert_eq!(libc::syscall(libc::SYS_mlock, at, length), 0);
            assert_ne!(libc::madvise(at as *mut _, length, libc::MADV_DONTNEED), 0);
            assert_eq!(libc::madvise(at as *mut _, length, DONTNEED_LOCKED), 0);
        }
    });
}

#[test]
fn brk_ends_the_registration() {
    let Some((_, cache)) = strict() else { return };
    // SAFETY: grows the heap by pages that only this test uses, and gives them back. The C library
    // notices that somebody else has moved the break, and leaves it alone; another thread that
    // moves it meanwhile would be in the way.
    unsafe {
        let start = libc::sbrk(16 * PAGE as isize);
        assert_ne!(start as isize, -1);
        let inner = (start as usize).next_multiple_of(PAGE) + PAGE;
        std::slice::from_raw_parts_mut(inner as *mut u8, 8 * PAGE).fill(1);
        let before = cache.get(inner as *const u8, 4 * PAGE, READ).unwrap().stamp();
        let end = libc::sbrk(0);
        if end as usize != start as usize + 16 * PAGE {
            return skip("the break: other code has moved it meanwhile");
        }
        libc::sbrk(-16 * PAGE as isize);
        assert_eq!(libc::sbrk(16 * PAGE as isize), start);
        assert!(cache.try_get(inner as *const u8, 4 * PAGE, READ).is_none());
        assert_ne!(cache.get(inner as *const u8, 4 * PAGE, READ).unwrap().stamp(), before);
    }
}

#[test]
fn free_and_realloc_of_large_blocks_end_the_registration() {
    let Some((_, cache)) = strict() else { return };
    // The block is so large that the C library gets it from the kernel and returns it at once.
    const LARGE: usize = 40 << 20;
    let mut again = 0;
    for _ in 0..50 {
        let block = vec![0u8; LARGE];
        let (pointer, length) = (block.as_ptr(), block.len());
        let before = cache.get(pointer, length, READ).unwrap().stamp();
        drop(block);
        assert!(cache.try_get(pointer, length, READ).is_none());
        let block = vec![0u8; LARGE];
        if block.as_ptr() == pointer {
            again += 1;
            assert_ne!(cache.get(pointer, length, READ).unwrap().stamp(), before);
        }
        // realloc of such a block calls mremap: the old range is gone, and no request for it hits.
        let mut growing = block;
        let old = growing.as_ptr();
        let before = cache.get(old, LARGE, READ).unwrap().stamp();
        growing.reserve_exact(LARGE);
        if growing.as_ptr() != old {
            assert_ne!(cache.get(growing.as_ptr(), LARGE, READ).unwrap().stamp(), before);
        }
    }
    assert!(again > 0, "the C library never gave the same address again");
}

/// Thread A unmaps and maps again; thread B requests the range as soon as A has finished. Without
/// the query to the kernel, B would hit a registration whose change the monitor has not read yet.
#[test]
fn no_hit_between_a_change_and_its_event() {
    let Some((_, cache)) = strict() else { return };
    delays::delay_events(std::time::Duration::from_micros(200));
    let area = GuardedMapping::new(4);
    // With all cores in use, a round takes up to 0.1 s: the threads wait for each other's core.
    for round in rounds(100, 3000, std::time::Duration::from_secs(20)) {
        let before = cache.get(area.pointer(), area.len(), READ).unwrap().stamp();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The new mapping exists before the system call returns in the thread that makes it.
            scope.spawn(|| {
                map_over(area.at(), area.len());
                stop.store(true, std::sync::atomic::Ordering::Release);
            });
            while !stop.load(std::sync::atomic::Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let after = cache.get(area.pointer(), area.len(), READ).unwrap().stamp();
            assert_ne!(after, before, "round {round}");
        });
    }
    delays::delay_events(std::time::Duration::ZERO);
}

/// ```text
///   B: get: the memory is watched ....... nothing is in the table yet ....... registers
///   A:                            maps it anew: it is not watched any more
/// ```
/// What B then keeps must be of memory that is watched. B pauses there, so that A comes in between.
#[test]
fn no_stale_entry_when_memory_changes_between_watching_and_registering() {
    let Some((_, cache)) = strict() else { return };
    let pause = std::time::Duration::from_micros(200);
    delays::pause_requests(pause);
    let area = GuardedMapping::new(4);
    let mut stale = 0;
    for round in 0..500 {
        std::thread::scope(|scope| {
            scope.spawn(|| drop(cache.get(area.pointer(), area.len(), READ).unwrap()));
            std::thread::sleep(pause * (round % 8) / 4);
            map_over(area.at(), area.len());
        });
        map_over(area.at(), area.len());
        stale += usize::from(cache.try_get(area.pointer(), area.len(), READ).is_some());
    }
    delays::pause_requests(std::time::Duration::ZERO);
    assert_eq!(stale, 0);
}

/// Waits until no registration is left. The reaper may find a stale registration at the very end of
/// its lease, take it over from the thread that drops the lease, and still be deregistering it.
fn wait_until_ended(fake: &Fake) {
    // Shorter than the time between two passes of the reaper, which alone is too late.
    eventually("the registration has ended", Duration::from_secs(2), || fake.live().is_empty());
}

#[test]
fn unwatchable_memory_is_registered_for_its_lease_only() {
    let Some((fake, cache)) = strict() else { return };
    // Shared memory of another owner.
    // SAFETY: new memory of the test's own.
    let shared = unsafe {
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(null_mut(), 4 * PAGE, rw, flags, -1, 0)
    };
    // Initialised data of the program: a private mapping of a file.
    static DATA: [u8; 64] = [7; 64];
    for pointer in [shared.cast::<u8>().cast_const(), DATA.as_ptr()] {
        let made = fake.made();
        for _ in 0..3 {
            let lease = cache.get(pointer, 64, READ).unwrap();
            assert_eq!(fake.live().len(), 1);
            drop(lease);
            wait_until_ended(&fake);
        }
        assert_eq!(fake.made(), made + 3);
    }
    assert_eq!(cache.stats().unwatchable, 6);
    // The kernel does not report holes in shared memory: a lease outlives one, and the next request
    // does not find it.
    let lease = cache.get(shared.cast(), 4 * PAGE, READ).unwrap();
    // SAFETY: the test's own pages.
    assert_eq!(unsafe { libc::madvise(shared, PAGE, libc::MADV_REMOVE) }, 0);
    assert!(cache.try_get(shared.cast(), PAGE, READ).is_none());
    let fresh = cache.get(shared.cast(), PAGE, READ).unwrap();
    assert_ne!(fresh.stamp(), lease.stamp());
    drop((lease, fresh));
    wait_until_ended(&fake);
    // SAFETY: nobody uses it any more.
    unsafe { libc::munmap(shared, 4 * PAGE) };
}

#[test]
fn a_registration_keeps_memory_of_hostbuf_mapped() {
    use hostbuf::job::Solo;
    use hostbuf::{BufferOptions, HostBuffer};
    let Some((fake, cache)) = strict() else { return };
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
    let (pointer, length) = (buffer.as_ptr().as_ptr(), buffer.len());
    drop(cache.get(pointer, 4096, READ).unwrap());
    drop(cache.get(pointer, 4096, READ).unwrap());
    assert_eq!((fake.made(), cache.stats().unwatchable), (1, 0));
    // The memory stays mapped as long as it is registered.
    drop(buffer);
    // SAFETY: only asks whether it is mapped.
    let mapped = |p: *mut u8| unsafe { libc::msync(p.cast(), length, libc::MS_ASYNC) } == 0;
    assert!(mapped(pointer));
    cache.flush().unwrap();
    assert!(!mapped(pointer));
}

#[test]
fn an_unmapped_registration_frees_its_budget_at_once() {
    if strict().is_none() {
        return;
    }
    // The budget has one slot: an unmapped registration is ended for the next request, whether or
    // not the cache's own thread has handled it, also if the device refuses overlaps.
    for overlap in [Overlap::Free, Overlap::Refused] {
        let (fake, cache) = cache(overlap, MANY.registrations(1), MonitorMode::Strict);
        for round in 0..300 {
            let area = GuardedMapping::new(2);
            let lease = cache.get(area.pointer(), area.len(), READ);
            drop(lease.unwrap_or_else(|e| panic!("round {round}: {e}; {:?}", cache.stats())));
            map_over(area.at(), area.len());
            let again = cache.get(area.pointer(), PAGE, READ);
            drop(again.unwrap_or_else(|e| panic!("round {round}, again: {e}; {:?}", cache.stats())));
        }
        assert_eq!(fake.peak().0, 1);
    }
}
