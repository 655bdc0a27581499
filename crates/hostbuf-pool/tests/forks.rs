//! Forked children of a process with a private pool.

#![allow(unsafe_code, reason = "forks a child")]

use hostbuf_pool::{
    AcquireError, ArrayLayout, ElementType, Pool, PoolError, PoolMode, PoolOptions, ProducerOptions,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Returns what the descriptors of this process name.
fn names_of_files() -> Vec<String> {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    files.filter_map(|file| Some(std::fs::read_link(file.path()).ok()?.display().to_string())).collect()
}

#[test]
fn a_child_drops_its_copies_without_an_effect_on_its_parent() {
    let pool = Pool::connect(PoolOptions::new("parent").mode(PoolMode::Private)).unwrap();
    let producer = pool.producer(&ProducerOptions::new(4096, 4)).unwrap();
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[4096]).unwrap();
    let token = producer.take().unwrap().publish(layout).unwrap();
    let (held, block) = (pool.acquire(&token).unwrap(), producer.take().unwrap());
    assert!(held.is_mapped() && block.is_mapped());
    assert!(names_of_files().iter().any(|name| name.contains("hostbuf-pool")));
    // SAFETY: the child drops objects, and ends.
    let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
        let inherits = names_of_files().iter().any(|name| name.contains("hostbuf-pool"));
        let refused = !inherits && matches!(pool.acquire(&token), Err(AcquireError::Pool(PoolError::Forked)));
        let well = refused && !held.is_mapped() && !block.is_mapped() && producer.try_take().is_err();
        drop((held, block, producer, pool));
        // SAFETY: runs no exit handler of the parent.
        unsafe { libc::_exit(i32::from(!well)) }
    };
    assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
    // The parent's hold exists, and its broker runs.
    assert_eq!(held.as_slice()[0], 0);
    drop(block);
    pool.status().unwrap();
    pool.producer(&ProducerOptions::new(4096, 4)).unwrap();
}
