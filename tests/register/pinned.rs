//! Memory that is registered from the start: concurrent use by threads and forked processes.

#![allow(unsafe_code, reason = "the tests read values that other threads or processes have dropped")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use hostbuf::register::Error;
use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{Access, Memory, Mlock, Overlap, PinnedAlloc, Registrar, RegistrarProperties};
use nix::sys::resource::{Resource, setrlimit};

use crate::READ;
use crate::child::{self, End};

const MIB: usize = 1 << 20;

fn pinned(limit: usize) -> (Arc<Fake>, PinnedAlloc<Fake>) {
    let fake = Arc::new(Fake::new(Overlap::Refused));
    (fake.clone(), PinnedAlloc::new(fake, READ, limit))
}

/// Blocks are shared memory: parent and child would both write a block that both get.
#[test]
fn a_forked_child_gets_no_block_of_its_parent() {
    let (fake, pinned) = pinned(64 * MIB);
    drop(pinned.allocate(4096).unwrap());
    let held = pinned.allocate(1000).unwrap();
    let dropped = &raw const held;
    let end = child::does(|| {
        let mut well = matches!(pinned.allocate(4096), Err(Error::Forked));
        well &= matches!(pinned.allocate(100 * MIB), Err(Error::Forked)) && pinned.registered() == 0;
        // SAFETY: the child's copies, and it ends before anybody drops them again.
        unsafe { drop((ptr::read(dropped), ptr::read(&raw const pinned))) };
        well && fake.live().len() == 1 && fake.ended().is_empty()
    });
    assert_eq!(end, End::Well);
    // The child has returned no block to the parent's pool.
    let other = pinned.allocate(1000).unwrap();
    assert!(!ptr::eq(other.as_ptr(), held.as_ptr()));
    assert_eq!(fake.made(), 1);
}

#[test]
fn fork_succeeds_while_a_thread_registers() {
    let (fake, pinned) = pinned(1 << 30);
    let held = pinned.allocate(4096).unwrap();
    let dropped = &raw const held;
    fake.close();
    let end = std::thread::scope(|scope| {
        let thread = scope.spawn(|| pinned.allocate(64 * MIB).map(drop));
        fake.expect_waiting(1);
        let end = child::does(|| {
            // SAFETY: the child's copy, and it ends before anybody drops it again.
            drop(unsafe { ptr::read(dropped) });
            format!("{pinned:?}").contains("fake") && matches!(pinned.allocate(4096), Err(Error::Forked))
        });
        fake.open();
        thread.join().unwrap().unwrap();
        end
    });
    assert_eq!(end, End::Well);
}

#[test]
fn fork_succeeds_while_threads_allocate_and_free_blocks() {
    let (fake, pinned) = pinned(64 * MIB);
    let held = pinned.allocate(100).unwrap();
    let dropped = &raw const held;
    let stop = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(pinned.allocate(100).unwrap());
                }
            });
        }
        let child = |_: &usize| {
            child::does(|| {
                let refused = matches!(pinned.allocate(100), Err(Error::Forked));
                // SAFETY: the child's copies, and it ends before anybody drops them again.
                unsafe { drop((ptr::read(dropped), ptr::read(&raw const pinned))) };
                refused
            }) != End::Well
        };
        let failed = (0..500).find(child);
        stop.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!((failed, fake.made()), (None, 1));
}

#[test]
fn allocations_continue_while_another_thread_registers() {
    let (fake, pinned) = pinned(1 << 30);
    drop(pinned.allocate(4096).unwrap());
    let held = pinned.allocate(4096).unwrap();
    fake.close();
    let done = std::thread::scope(|scope| {
        let large = scope.spawn(|| pinned.allocate(64 * MIB).map(drop));
        fake.expect_waiting(1);
        let (say, done) = mpsc::channel();
        let (pinned, fake) = (&pinned, &fake);
        scope.spawn(move || {
            drop(held);
            // The block is freed, and the next one comes from the same slab.
            drop((pinned.allocate(4096).unwrap(), pinned.allocate(100).unwrap()));
            say.send(pinned.registered()).unwrap();
        });
        let done = done.recv_timeout(Duration::from_secs(10));
        fake.open();
        large.join().unwrap().unwrap();
        done
    });
    assert_eq!(done, Ok(2 * MIB));
    assert_eq!((fake.made(), pinned.registered()), (2, 66 * MIB));
}

#[test]
fn large_blocks_are_registered_concurrently_within_the_limit() {
    let (fake, pinned) = pinned(128 * MIB);
    fake.close();
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| pinned.allocate(64 * MIB)));
        fake.expect_waiting(2);
        // Threads in registration already count with their full size.
        let refused = pinned.allocate(1).map(drop);
        fake.open();
        let blocks = threads.map(|thread| thread.join().unwrap().unwrap());
        assert!(
            matches!(refused, Err(Error::Limit { registered, .. }) if registered == 128 * MIB),
            "{refused:?}"
        );
        assert_eq!((fake.made(), pinned.registered()), (2, 128 * MIB));
        drop(blocks);
    });
}

#[test]
fn threads_that_start_together_share_a_slab() {
    let (fake, pinned) = pinned(2 * MIB);
    let begin = Barrier::new(8);
    fake.close();
    std::thread::scope(|scope| {
        let threads = [(); 8].map(|()| {
            scope.spawn(|| {
                begin.wait();
                pinned.allocate(100).unwrap()
            })
        });
        fake.expect_waiting(1);
        fake.open();
        let mut places = threads.map(|thread| thread.join().unwrap()).map(|block| block.as_ptr() as usize);
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[1] - two[0] >= 128), "{places:x?}");
    });
    assert_eq!(fake.made(), 1);
}

#[test]
fn a_refused_registration_does_not_count_in_the_limit() {
    let (fake, pinned) = pinned(64 * MIB);
    fake.fail(1, libc::EIO);
    assert!(matches!(pinned.allocate(64 * MIB), Err(Error::Registration { .. })));
    assert_eq!(pinned.registered(), 0);
    assert_eq!(pinned.allocate(64 * MIB).unwrap().len(), 64 * MIB);
}

/// A device that panics in one registration.
struct PanickingDevice(AtomicBool);

impl Registrar for PanickingDevice {
    type Handle = ();
    type Key = ();

    fn name(&self) -> String {
        "panics".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, (): &()) {}

    fn register(&self, _: &Memory, _: Access) -> hostbuf::register::Result<()> {
        assert!(self.0.swap(true, Ordering::Relaxed), "told to");
        Ok(())
    }

    fn deregister(&self, _: &Memory, (): ()) -> hostbuf::register::Result<()> {
        Ok(())
    }
}

#[test]
fn a_panicking_registration_does_not_count_in_the_limit() {
    let pinned = PinnedAlloc::new(Arc::new(PanickingDevice(AtomicBool::new(false))), READ, 2 * MIB);
    catch_unwind(AssertUnwindSafe(|| pinned.allocate(100).map(drop))).unwrap_err();
    assert_eq!(pinned.allocate(2 * MIB).unwrap().registered().len(), 2 * MIB);
}

#[test]
fn a_slab_doubles_the_total_unless_the_limit_is_near() {
    let (fake, pinned) = pinned(1 << 30);
    let blocks: Vec<_> = (0..96).map(|_| pinned.allocate(MIB).unwrap()).collect();
    let mut lengths: Vec<usize> = fake.live().iter().map(|(_, span, _)| span.len() / MIB).collect();
    lengths.dedup();
    assert_eq!(lengths, [2, 4, 8, 16, 32]);
    fake.fail(2, libc::ENOMEM);
    let shorter = pinned.allocate(MIB).unwrap();
    assert_eq!(shorter.registered().len(), 8 * MIB);
    // The pool tries smaller slabs, down to the size of the block.
    fake.fail(usize::MAX, libc::ENOMEM);
    let (made, taken) = (fake.made(), pinned.registered());
    assert!(matches!(pinned.allocate(16 * MIB), Err(Error::Registration { .. })));
    fake.fail(0, 0);
    assert_eq!((fake.made(), pinned.registered()), (made, taken));
    drop(blocks);
}

#[test]
fn the_limit_is_checked_before_memory_is_allocated() {
    let (fake, pinned) = pinned(64 * MIB);
    // No host has so much memory, so without the check the error would be a different one.
    for (asked, words) in [(1 << 50, "a block of 1024 TiB"), (65 * MIB, "65 MiB (which takes 128 MiB)")] {
        let refused = pinned.allocate(asked).unwrap_err();
        let text = refused.to_string();
        let all = [words, "this allocator may register 64 MiB", "registered 0 bytes", "raise its limit"];
        assert!(all.iter().all(|words| text.contains(words)), "{text}");
    }
    assert_eq!(fake.made(), 0);
    assert!(matches!(pinned.allocate(usize::MAX), Err(Error::Invalid { .. })));
    // The limit is less than a slab, and not a multiple of a page.
    let (_, pinned) = self::pinned(3 * 4096 + 1);
    assert_eq!(pinned.allocate(4096).unwrap().registered().len(), 3 * 4096);
}

/// The limit of locked memory is that of an ordinary user.
#[test]
fn a_small_limit_of_locked_memory_is_enough_for_small_blocks() {
    let end = child::does(|| {
        child::obey_limits();
        setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).unwrap();
        let pinned = PinnedAlloc::new(Arc::new(Mlock::new()), READ, 64 * MIB);
        let block = pinned.allocate(1000).unwrap();
        assert_eq!(block.registered().len(), 64 << 10);
        let text = pinned.allocate(100_000).map(drop).unwrap_err().to_string();
        assert!(text.contains("RLIMIT_MEMLOCK"), "{text}");
        pinned.allocate(2000).is_ok()
    });
    assert_eq!(end, End::Well);
}
