//! Page locks that registrations leave behind.

#![allow(unsafe_code, reason = "the tests change the mappings of locked memory")]

use std::sync::Arc;

use hostbuf::register::Error;
use hostbuf::register::{Access, Budget, Mlock, MonitorMode, Registrar, Registration, RegistrationCache};
use nix::sys::resource::{Resource, setrlimit};

use crate::child::{self, End};
use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{READ, skip, span};

/// Returns the bytes that this process has locked. Each test is a process of its own.
fn locked() -> usize {
    hostbuf_os::memlock::locked() as usize
}

fn unmap(start: usize, length: usize) {
    // SAFETY: a test's own pages.
    assert_eq!(unsafe { libc::munmap(start as *mut _, length) }, 0);
}

fn alone() -> bool {
    // With cargo test all tests share one process, and so its locked memory.
    let alone = std::env::var_os("NEXTEST").is_some();
    if !alone {
        skip("locked memory: the tests run in one process (cargo nextest)");
    }
    alone
}

/// ```text
///   |-- registered --|
///   |  |xx|   |xx|   |      the program unmaps some of it
/// ```
#[test]
fn unmapped_holes_leave_nothing_locked() {
    if !alone() {
        return;
    }
    let mlock = Mlock::new();
    // The larger range is unlocked by mappings, the smaller one by pages.
    for pages in [16, 512] {
        for holes in [&[0][..], &[3], &[pages - 1], &[0, 5, 6, pages - 1]] {
            let area = GuardedMapping::new(pages);
            let whole = span(area.at(), area.len());
            mlock.register(&whole.into(), READ).unwrap();
            assert_eq!(locked(), area.len());
            holes.iter().for_each(|hole| unmap(area.at() + hole * PAGE, PAGE));
            mlock.deregister(&whole.into(), ()).unwrap();
            assert_eq!(locked(), 0, "{pages} pages, holes {holes:?}");
            map_over(area.at(), area.len());
        }
    }
}

#[test]
fn other_registrations_stay_locked_beside_a_hole() {
    if !alone() {
        return;
    }
    let mlock = Arc::new(Mlock::new());
    let area = GuardedMapping::new(200);
    let first = Registration::new(&mlock, span(area.at(), area.len()), READ).unwrap();
    let second = Registration::new(&mlock, span(area.at() + 150 * PAGE, 10 * PAGE), READ).unwrap();
    unmap(area.at() + 100 * PAGE, PAGE);
    drop(first);
    assert_eq!(locked(), 10 * PAGE);
    drop(second);
    assert_eq!(locked(), 0);
    map_over(area.at(), area.len());
}

#[test]
fn unmapped_holes_leave_nothing_locked_through_a_cache() {
    if !alone() {
        return;
    }
    let budget = Budget::new(16).bytes(16 * PAGE);
    let cache = RegistrationCache::new(Arc::new(Mlock::new()), budget, MonitorMode::Explicit).unwrap();
    let areas: Vec<GuardedMapping> = (0..20).map(|_| GuardedMapping::new(16)).collect();
    for area in &areas {
        drop(cache.get(area.pointer(), area.len(), READ).unwrap());
        unmap(area.at(), PAGE);
    }
    cache.flush().unwrap();
    assert_eq!(locked(), 0);
    areas.iter().for_each(|area| map_over(area.at(), area.len()));
}

/// An attempt for each page would take days.
#[test]
fn a_range_beyond_the_mapped_memory_fails_at_once() {
    if !alone() {
        return;
    }
    let area = GuardedMapping::new(16);
    let mlock = Arc::new(Mlock::new());
    let held = Registration::new(&mlock, span(area.at() + 4 * PAGE, PAGE), READ).unwrap();
    for shift in [30, 40, 46, 62] {
        let refused = mlock.register(&span(area.at(), 1 << shift).into(), READ).unwrap_err();
        let hole = format!("nothing is mapped at {:#x}", area.at() + area.len());
        let limited = refused.to_string().contains("RLIMIT_MEMLOCK");
        assert!(limited || refused.to_string().contains(&hole), "{refused}");
        assert_eq!(locked(), PAGE);
    }
    drop(held);
    assert_eq!(locked(), 0);
}

#[test]
fn a_forked_child_locks_nothing_with_its_parents_registrar() {
    let mlock = Arc::new(Mlock::new());
    let area = GuardedMapping::new(4);
    let whole = span(area.at(), area.len());
    let registration = Registration::new(&mlock, whole, READ).unwrap();
    let dropped = &raw const registration;
    let end = child::does(|| {
        let well = matches!(mlock.register(&whole.into(), READ), Err(Error::Forked))
            && mlock.deregister(&whole.into(), ()).is_ok()
            && locked() == 0;
        // SAFETY: the child's copy, and it ends before anybody drops it again.
        drop(unsafe { std::ptr::read(dropped) });
        let own = Mlock::new();
        own.register(&whole.into(), READ).unwrap();
        own.deregister(&whole.into(), ()).unwrap();
        well
    });
    assert_eq!(end, End::Well);
}

/// Children are forked while threads hold the registrar's lock.
#[test]
fn forked_children_wait_for_no_lock_of_their_parents() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mlock = Mlock::new();
    let stop = AtomicBool::new(false);
    let areas = [GuardedMapping::new(64), GuardedMapping::new(64)];
    let whole = |area: &GuardedMapping| span(area.at(), area.len());
    let failed = std::thread::scope(|scope| {
        for area in &areas {
            let (mlock, stop) = (&mlock, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    mlock.register(&whole(area).into(), READ).unwrap();
                    mlock.deregister(&whole(area).into(), ()).unwrap();
                }
            });
        }
        let child = |_: &usize| {
            child::does(|| {
                matches!(mlock.register(&whole(&areas[0]).into(), READ), Err(Error::Forked))
                    && mlock.deregister(&whole(&areas[0]).into(), ()).is_ok()
            }) != End::Well
        };
        let failed = (0..100).find(child);
        stop.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, None);
}

#[test]
fn a_partly_registered_mapping_moves_as_a_whole_after_deregistration() {
    let mlock = Arc::new(Mlock::new());
    let area = GuardedMapping::new(4);
    let part = Registration::new(&mlock, span(area.at() + PAGE, PAGE), READ).unwrap();
    let refused = remap(area.at(), area.len()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
    drop(part);
    let moved = remap(area.at(), area.len()).unwrap();
    unmap(moved, 2 * area.len());
    map_over(area.at(), area.len());
}

fn remap(start: usize, length: usize) -> std::io::Result<usize> {
    // SAFETY: a test's own pages.
    let moved = unsafe { libc::mremap(start as *mut _, length, 2 * length, libc::MREMAP_MAYMOVE) };
    if moved == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(moved as usize) }
}

#[test]
fn read_only_memory_can_be_registered_for_reading() {
    let area = GuardedMapping::new(1);
    // SAFETY: a test's own page.
    assert_eq!(unsafe { libc::mprotect(area.at() as *mut _, PAGE, libc::PROT_READ) }, 0);
    Registration::new(&Arc::new(Mlock::new()), span(area.at(), PAGE), Access::WRITE).unwrap();
}

#[test]
fn the_memlock_limit_error_names_the_remedy() {
    const LIMIT: usize = 64 << 10;
    let area = GuardedMapping::new(64);
    let end = child::does(|| {
        child::obey_limits();
        let limited = |bytes: usize| setrlimit(Resource::RLIMIT_MEMLOCK, bytes as u64, bytes as u64).unwrap();
        let mlock = Mlock::new();
        let refused = |pages: usize| {
            mlock.register(&span(area.at(), pages * PAGE).into(), READ).unwrap_err().to_string()
        };
        let says = |text: &str, words: &[&str]| {
            assert!(words.iter().all(|word| text.contains(word)) && text.lines().count() == 1, "{text}");
        };
        limited(LIMIT);
        says(&refused(17), &["RLIMIT_MEMLOCK", "may lock 64 KiB", "has locked 0 bytes", "ulimit -l"]);
        let held = span(area.at() + 16 * PAGE, 10 * PAGE);
        mlock.register(&held.into(), READ).unwrap();
        says(&refused(7), &["may lock 64 KiB", "has locked 40 KiB", "ulimit -l"]);
        // Within the limit the hole causes the error.
        let hole = span(area.at() + area.len() - PAGE, 2 * PAGE);
        says(&mlock.register(&hole.into(), READ).unwrap_err().to_string(), &["nothing is mapped"]);
        mlock.deregister(&held.into(), ()).unwrap();
        limited(0);
        says(&refused(1), &["RLIMIT_MEMLOCK is 0", "ulimit -l"]);
        locked() == 0
    });
    assert_eq!(end, End::Well);
}
