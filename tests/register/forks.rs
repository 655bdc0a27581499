//! fork: what is registered belongs to the parent.

use hostbuf::Error;
use hostbuf::register::{Monitor, Overlap};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::memory::{Area, map_over};
use crate::{MANY, READ, cache};

#[test]
fn a_child_gets_an_error_and_ends_nothing_of_its_parents() {
    let (fake, cache) = cache(Overlap::Free, MANY, Monitor::Strict);
    let area = Area::new(4);
    let lease = cache.get(area.pointer(), area.len(), READ).unwrap();
    // SAFETY: the child only asks, drops, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let refused = matches!(cache.get(area.pointer(), area.len(), READ), Err(Error::Forked))
                && cache.try_get(area.pointer(), area.len(), READ).is_none();
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
    let own = *lease.handle();
    drop(lease);
    assert_eq!(*cache.get(area.pointer(), area.len(), READ).unwrap().handle(), own);
}

#[test]
fn while_a_child_lives_memory_is_unmapped_and_the_cache_goes() {
    let (fake, cache) = cache(Overlap::Free, MANY, Monitor::Strict);
    let area = Area::new(4);
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
    // Nobody listens any more: this would wait for ever if anything were watched still.
    map_over(area.at(), area.len());
    drop(area);
    drop(writer);
    waitpid(child, None).unwrap();
    assert!(fake.live().is_empty());
}
