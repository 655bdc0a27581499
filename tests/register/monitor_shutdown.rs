//! The end of the monitor: with the last cache all memory is unwatched, and no call hangs.

#![allow(unsafe_code, reason = "the tests fork and change the mappings of watched memory")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostbuf::job::Solo;
use hostbuf::register::Error;
use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{Access, Budget, MonitorMode, Overlap, RegistrationCache};
use hostbuf::{BufferOptions, HostBuffer, Pages};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use crate::allocator::give_back_with_each_call;
use crate::memory::{GuardedMapping, PAGE};
use crate::time_limit::within;
use crate::{READ, Stamped, span, strict, strict_with};

#[test]
fn dropping_a_cache_does_not_deadlock_with_an_allocator_that_unmaps() {
    if strict().is_none() {
        return;
    }
    let stop = AtomicBool::new(false);
    let (given_back, other) = (GuardedMapping::new(1), GuardedMapping::new(1));
    let areas: Vec<GuardedMapping> = (0..32).map(|_| GuardedMapping::new(1)).collect();
    within("dropping caches", Duration::from_secs(80), || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: the test's own page.
                    unsafe { libc::madvise(other.at() as *mut _, PAGE, libc::MADV_DONTNEED) };
                }
            });
            for _ in 0..150 {
                let (_, cache) = strict().expect("there was one");
                for area in areas.iter().chain([&given_back, &other]) {
                    // Requests for the memory that changes all the time may be refused.
                    drop(cache.get(area.pointer(), PAGE, READ));
                }
                give_back_with_each_call(given_back.at());
                drop(cache);
                give_back_with_each_call(0);
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

/// A refused freeze gives a reason, and holds no lock while it allocates the text.
#[test]
fn a_refused_freeze_does_not_deadlock_with_an_allocator_that_unmaps() {
    let Some((_, cache)) = strict() else { return };
    let given_back = GuardedMapping::new(1);
    drop(cache.get(given_back.pointer(), PAGE, READ).unwrap());
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20).pages(Pages::Small)).unwrap();
    buffer.initialize(|arena| arena.place(1u64)).unwrap();
    let lease = cache.get(buffer.as_ptr().as_ptr(), 64, Access::WRITE).unwrap();
    within("a refused freezing", Duration::from_secs(20), || {
        for _ in 0..20 {
            give_back_with_each_call(given_back.at());
            let refused = buffer.freeze(&Solo).map(drop);
            give_back_with_each_call(0);
            assert!(refused.unwrap_err().to_string().contains("a lease lets"));
        }
    });
    drop(lease);
}

/// Runs every operation of a cache, whatever its result.
#[test]
fn no_operation_deadlocks_with_an_allocator_that_unmaps() {
    static DATA: [u8; 64] = [7; 64];
    for overlap in [Overlap::Free, Overlap::Refused] {
        let budget = Budget::new(4).bytes(64 * PAGE);
        let Some((fake, cache)) = strict_with(overlap, budget) else { return };
        let given_back = GuardedMapping::new(1);
        drop(cache.get(given_back.pointer(), PAGE, READ).unwrap());
        let areas: Vec<GuardedMapping> = (0..8).map(|_| GuardedMapping::new(8)).collect();
        let brief = Duration::from_millis(1);
        within("everything", Duration::from_secs(60), || {
            give_back_with_each_call(given_back.at());
            for round in 0..20 {
                let mut held = Vec::new();
                for area in &areas {
                    held.extend(cache.get(area.pointer(), PAGE * (1 + round % 8), READ));
                    let _ = cache.get(area.pointer(), PAGE * 3, Access::WRITE);
                    let _ = cache.get_timeout(area.pointer(), PAGE * 65, READ, brief);
                    let _ = cache.get_timeout(area.pointer(), PAGE * 5, READ, brief);
                }
                let spans: Vec<_> = areas.iter().map(|area| span(area.at(), PAGE)).collect();
                let _ = cache.get_many(&spans, READ);
                let _ = cache.keep(DATA.as_ptr(), DATA.len(), READ);
                let _ = cache.get(DATA.as_ptr(), DATA.len(), READ);
                cache.invalidate(span(areas[0].at(), PAGE)).unwrap();
                held.clear();
                fake.fail(2, libc::ENOMEM);
                let _ = cache.get(areas[3].pointer(), PAGE, READ);
                fake.fail(0, 0);
                crate::memory::map_over(areas[1].at(), PAGE);
                let _ = format!("{:?}", cache.stats());
                if round == 10 {
                    let _ = cache.keep(areas[2].pointer(), PAGE, READ);
                }
                cache.flush().unwrap();
            }
            drop(cache);
            give_back_with_each_call(0);
        });
        assert!(fake.live().is_empty());
    }
}

/// The monitor stops even if the process can open no more files, whether for lack of descriptors or
/// of the file.
#[test]
fn the_monitor_stops_when_no_file_can_be_opened() {
    let Some((_, cache)) = strict() else { return };
    // Large vectors lie beside each other and beside the monitor's memory, and the kernel merges
    // them into one mapping.
    let areas: Vec<Vec<u8>> = (0..16).map(|_| vec![7; 4 << 20]).collect();
    for area in &areas {
        drop(cache.get(area.as_ptr(), PAGE, READ).unwrap());
    }
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let few = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 + 1;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, few, limit.1).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    // New memory is still watched, and its registrations are kept.
    let fresh = GuardedMapping::new(2);
    let before = cache.get(fresh.pointer(), PAGE, READ).unwrap().stamp();
    assert_eq!(cache.get(fresh.pointer(), PAGE, READ).unwrap().stamp(), before);
    assert_eq!(cache.stats().unwatchable, 0);
    within("the last cache and its memory", Duration::from_secs(20), || {
        drop(cache);
        drop(areas);
        drop(fresh);
    });
    drop(all);
}

/// Runs `work` while a child lives that has every descriptor of this process.
fn with_a_child(act: impl FnOnce()) {
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child only waits and ends.
    let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
        drop(writer);
        let mut byte = [0];
        let _ = std::io::Read::read(&mut &reader, &mut byte);
        // SAFETY: runs nothing of the parent's.
        unsafe { libc::_exit(0) }
    };
    act();
    drop(writer);
    waitpid(child, None).unwrap();
}

fn remap(start: usize, old: usize, new: usize, flags: i32) -> usize {
    // SAFETY: a test's own pages.
    let moved = unsafe { libc::mremap(start as *mut _, old, new, flags) };
    assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    moved as usize
}

fn unmap(start: usize, length: usize) {
    // SAFETY: a test's own pages.
    assert_eq!(unsafe { libc::munmap(start as *mut _, length) }, 0);
}

/// Returns eight pages of which the cache knows the first four: the mapping has grown in place.
fn grown(cache: &crate::FakeCache) -> usize {
    for _ in 0..100 {
        let area = std::mem::ManuallyDrop::new(GuardedMapping::new(8));
        unmap(area.at() + 4 * PAGE, 5 * PAGE);
        drop(cache.get(area.pointer(), 4 * PAGE, READ).unwrap());
        // SAFETY: the test's own pages; what is behind them is nobody's, or somebody's by now: then
        // it does not grow.
        if unsafe { libc::mremap(area.at() as *mut _, 4 * PAGE, 8 * PAGE, 0) } as usize == area.at() {
            return area.at();
        }
        unmap(area.at(), 4 * PAGE);
    }
    panic!("another mapping always follows the area");
}

#[test]
fn a_moved_mapping_is_unwatched_at_shutdown() {
    let Some((_, cache)) = strict() else { return };
    let area = std::mem::ManuallyDrop::new(GuardedMapping::new(4));
    drop(cache.get(area.pointer(), area.len(), READ).unwrap());
    let moved = remap(area.at(), area.len(), 8 * PAGE, libc::MREMAP_MAYMOVE);
    assert_ne!(moved, area.at());
    with_a_child(|| {
        drop(cache);
        within("munmap of what has moved", Duration::from_secs(10), || unmap(moved, 8 * PAGE));
    });
}

#[test]
fn a_mapping_grown_in_place_is_unwatched_at_shutdown() {
    let Some((_, cache)) = strict() else { return };
    let at = grown(&cache);
    with_a_child(|| {
        drop(cache);
        within("munmap of what has grown", Duration::from_secs(10), || unmap(at, 8 * PAGE));
    });
}

#[test]
fn the_end_of_a_grown_and_truncated_mapping_is_unwatched_at_shutdown() {
    let Some((_, cache)) = strict() else { return };
    let at = grown(&cache);
    unmap(at, 5 * PAGE);
    with_a_child(|| {
        drop(cache);
        within("munmap of the end", Duration::from_secs(10), || unmap(at + 5 * PAGE, 3 * PAGE));
    });
}

#[test]
fn the_target_of_a_moved_mapping_does_not_count_as_watched() {
    let Some((_, cache)) = strict() else { return };
    let area = std::mem::ManuallyDrop::new(GuardedMapping::new(4));
    drop(cache.get(area.pointer(), area.len(), READ).unwrap());
    let moved = remap(area.at(), area.len(), 8 * PAGE, libc::MREMAP_MAYMOVE);
    for start in [moved, moved + 4 * PAGE] {
        let before = cache.get(start as *const u8, 4 * PAGE, READ).unwrap().stamp();
        crate::memory::map_over(start, 4 * PAGE);
        assert_ne!(cache.get(start as *const u8, 4 * PAGE, READ).unwrap().stamp(), before);
    }
    unmap(moved, 8 * PAGE);
}

#[test]
fn one_cache_too_many_is_an_error_and_the_others_continue() {
    let Some((_, cache)) = strict() else { return };
    let fake = Arc::new(Fake::new(Overlap::Free));
    let one = || RegistrationCache::new(fake.clone(), Budget::new(1).bytes(1 << 20), MonitorMode::Strict);
    let mut others = Vec::new();
    let begun = Instant::now();
    let refused = loop {
        match one() {
            Ok(other) => others.push(other),
            Err(error) => break error,
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    assert!(matches!(&refused, Error::Invalid { what } if what.contains("256")), "{refused}");
    assert_eq!(others.len(), 255);
    let area = GuardedMapping::new(1);
    let before = cache.get(area.pointer(), PAGE, READ).unwrap().stamp();
    crate::memory::map_over(area.at(), PAGE);
    assert_ne!(cache.get(area.pointer(), PAGE, READ).unwrap().stamp(), before);
    others.pop();
    drop(one().unwrap());
}
