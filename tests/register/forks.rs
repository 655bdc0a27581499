//! fork: registrations belong to the parent.

#![allow(unsafe_code, reason = "the tests fork")]

use std::time::Duration;

use hostbuf::register::Error;
use hostbuf::register::{MonitorMode, Overlap};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{MANY, READ, Stamped, cache, requests_until_kept, rounds, span};

/// The time after which a test forks no further children: one child takes 0.1 s if others use all
/// cores.
const ENOUGH: Duration = Duration::from_secs(20);

#[test]
fn a_forked_child_gets_an_error_and_ends_no_registration_of_its_parent() {
    let (fake, cache) = cache(Overlap::Free, MANY, MonitorMode::Strict);
    let area = GuardedMapping::new(4);
    let lease = cache.get(area.pointer(), area.len(), READ).unwrap();
    // SAFETY: the child only asks, drops, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let refused = matches!(cache.get(area.pointer(), area.len(), READ), Err(Error::Forked))
                && cache.try_get(area.pointer(), area.len(), READ).is_none();
            // The child must not end the parent's registrations.
            let refused = refused
                && matches!(cache.invalidate(span(area.at(), area.len())), Err(Error::Forked))
                && matches!(cache.flush(), Err(Error::Forked))
                && matches!(cache.get_many(&[span(area.at(), 1)], READ), Err(Error::Forked));
            let held = fake.live().len();
            drop(lease);
            drop(cache);
            let well = refused && held == 1 && fake.live().len() == 1 && fake.ended().is_empty();
            // SAFETY: runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => {
            assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        }
    }
    assert_eq!((fake.live().len(), fake.ended().len()), (1, 0));
    let own = lease.stamp();
    drop(lease);
    assert_eq!(cache.get(area.pointer(), area.len(), READ).unwrap().stamp(), own);
}

#[test]
fn memory_is_unmapped_and_the_cache_dropped_while_a_child_lives() {
    let (fake, cache) = cache(Overlap::Free, MANY, MonitorMode::Strict);
    let area = GuardedMapping::new(4);
    drop(cache.get(area.pointer(), area.len(), READ).unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child only waits and ends.
    let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
        drop(writer);
        let mut byte = [0];
        let _ = std::io::Read::read(&mut &reader, &mut byte);
        // SAFETY: runs nothing of the parent's.
        unsafe { libc::_exit(0) }
    };
    map_over(area.at(), area.len());
    drop(cache.get(area.pointer(), area.len(), READ).unwrap());
    drop(cache);
    // The child has no monitor thread: this would wait forever if any memory were still watched.
    map_over(area.at(), area.len());
    drop(area);
    drop(writer);
    waitpid(child, None).unwrap();
    assert!(fake.live().is_empty());
}

/// Children are forked while threads take leases, drop them and change memory, with leases alive.
/// Some children exit at once; others make a cache of their own and leave the parent's alone. The
/// parent keeps its registrations.
#[test]
fn fork_succeeds_while_threads_use_the_cache() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let Some((fake, cache)) = crate::strict() else { return };
    let kept = GuardedMapping::new(4);
    let lease = cache.get(kept.pointer(), kept.len(), READ).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (cache, kept, stop) = (&cache, &kept, &stop);
            scope.spawn(move || {
                let area = GuardedMapping::new(4);
                while !stop.load(Ordering::Relaxed) {
                    drop(cache.get(area.pointer(), area.len(), READ).unwrap());
                    drop(cache.get(kept.pointer(), 100, READ).unwrap());
                    map_over(area.at(), area.len());
                }
            });
        }
        let mut well = 0;
        for round in 0..60 {
            // SAFETY: the child asks, drops and ends. It calls what allocates, which the C library
            // allows after fork.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => {
                    let mut well = cache.try_get(kept.pointer(), 1, READ).is_none();
                    well &= matches!(cache.get(kept.pointer(), 1, READ), Err(Error::Forked));
                    if round % 3 == 1 {
                        let (fake, own) = crate::cache(Overlap::Free, MANY, MonitorMode::Strict);
                        let requests = requests_until_kept(&own, kept.pointer(), kept.len());
                        well &= requests.is_some_and(|requests| fake.made() == requests);
                        map_over(kept.at(), kept.len());
                        well &= own.try_get(kept.pointer(), 1, READ).is_none();
                        drop(own);
                        well &= fake.live().is_empty();
                    }
                    if round % 3 == 0 {
                        // SAFETY: the child's copies, and it ends before anybody drops them again.
                        unsafe { drop((std::ptr::read(&lease), std::ptr::read(&cache))) }
                    }
                    // SAFETY: runs nothing of the parent's.
                    unsafe { libc::_exit(i32::from(!well)) }
                }
                ForkResult::Parent { child } => {
                    well += usize::from(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(well, 60);
    });
    assert!(fake.live().iter().any(|live| live.0 == lease.stamp().0));
    assert_eq!(cache.get(kept.pointer(), kept.len(), READ).unwrap().stamp(), lease.stamp());
    drop(lease);
    drop(cache);
    assert_eq!((fake.live().len(), fake.ended().len()), (0, fake.made()));
}

#[test]
fn a_child_that_freezes_ends_no_registration_of_its_parent() {
    use hostbuf::job::Solo;
    use hostbuf::{BufferOptions, HostBuffer};
    let (fake, cache) = cache(Overlap::Free, MANY, MonitorMode::Explicit);
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
    buffer.initialize(|arena| arena.place(1u64)).unwrap();
    drop(cache.get(buffer.as_ptr().as_ptr(), 64, READ).unwrap());
    // SAFETY: the child only freezes, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // The result does not matter here.
            let _ = buffer.freeze(&Solo);
            let well = fake.ended().is_empty() && fake.live().len() == 1;
            // SAFETY: runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => {
            assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        }
    }
    assert_eq!(fake.live().len(), 1);
}

/// Threads are inside misses when a child is forked. The child makes caches of its own, and needs
/// no lock that a missing thread holds.
#[test]
fn a_child_can_make_its_own_cache() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (_, parents) = cache(Overlap::Free, MANY, MonitorMode::Explicit);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..3usize {
            let (parents, stop) = (&parents, &stop);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let start = 0x100_0000 * thread + n % 4096 * PAGE;
                    drop(parents.get(start as *const u8, 8, READ).unwrap());
                }
            });
        }
        let mut well = 0;
        let mut children = 0;
        for _ in rounds(100, 1000, ENOUGH) {
            children += 1;
            // SAFETY: the child makes a cache, uses it, and ends; the C library's own locks are
            // good in it.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => {
                    let (fake, own) = cache(Overlap::Free, MANY, MonitorMode::Explicit);
                    drop(own.get(0x1000 as *const u8, 8, READ).unwrap());
                    // SAFETY: runs nothing of the parent's.
                    unsafe { libc::_exit(i32::from(fake.made() != 1)) }
                }
                ForkResult::Parent { child } => {
                    well += usize::from(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(well, children);
    });
}

/// Threads start and stop the monitor while forked children start one of their own.
#[test]
fn a_child_can_start_its_own_monitor() {
    use std::sync::atomic::{AtomicBool, Ordering};
    if crate::strict().is_none() {
        return;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(cache(Overlap::Free, MANY, MonitorMode::Strict));
                }
            });
        }
        // The standard library holds an internal lock while a thread starts or ends. In a child
        // that lock may stay locked.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::spawn(|| {}).join().unwrap();
            }
        });
        let mut well = 0;
        let mut children = 0;
        for _ in rounds(20, 100, ENOUGH) {
            children += 1;
            // SAFETY: the child makes a cache, uses it, and ends; the C library's own locks are
            // good in it.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => {
                    let (_, own) = cache(Overlap::Free, MANY, MonitorMode::Strict);
                    let area = GuardedMapping::new(1);
                    let kept = requests_until_kept(&own, area.pointer(), area.len()).is_some();
                    // SAFETY: runs nothing of the parent's.
                    unsafe { libc::_exit(i32::from(!kept)) }
                }
                ForkResult::Parent { child } => {
                    well += usize::from(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(well, children);
    });
}
