//! Memory that is registered from the start, between threads and processes.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostbuf::Error;
use hostbuf::register::fake::Fake;
use hostbuf::register::{Overlap, PinnedAlloc};

use crate::READ;
use crate::child::{self, End};

const MIB: usize = 1 << 20;

fn pinned(limit: usize) -> (Arc<Fake>, PinnedAlloc<Fake>) {
    let fake = Arc::new(Fake::new(Overlap::Refused));
    (fake.clone(), PinnedAlloc::new(fake, READ, limit))
}

/// Blocks are shared memory: one that both were given would be written by both.
#[test]
fn a_child_gets_no_block_of_its_parents() {
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
    // The child has given nothing back here.
    let other = pinned.allocate(1000).unwrap();
    assert!(!ptr::eq(other.as_ptr(), held.as_ptr()));
    assert_eq!(fake.made(), 1);
}

#[test]
fn a_child_is_born_while_a_thread_registers() {
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
fn children_are_born_while_threads_take_blocks_and_drop_them() {
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
