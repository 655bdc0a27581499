//! Copies that cannot be made: the buffer stays frozen, all ranks read the original pages and get
//! an error, and a later freeze makes the copies.

#![allow(unsafe_code, reason = "maps a page of a copy, and forks a child that keeps its mappings")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostbuf::job::{Collective, Local};
use hostbuf::{Error, FillState, HostBuffer, Pages};
use hostbuf_memory::{FileMapping, Seals};
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::FullNode;
use hostbuf_programs::numa::sys_node::{PAGE, with_memory};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use crate::contents::{Filled, sealed};
use crate::copy_watcher::watch;
use crate::pages::own_node;

/// Checks the error of a freeze whose copies could not be made, and that all ranks read the one
/// memory. Returns the error.
fn expect_one_memory(
    group: &Local,
    filled: &Filled,
    frozen: Result<(), Error>,
    words: &[&str],
) -> Result<String, String> {
    let first = with_memory()?[0];
    let error = frozen.err().ok_or("the freeze has succeeded")?.to_string();
    let all = ["is frozen, but its copies could not be made", "all ranks read the original pages"];
    let missing = all.iter().chain(words).find(|word| !error.contains(*word));
    expect(missing.is_none(), format!("{missing:?} is missing: {error}"))?;
    let state = filled.buffer.fill_state().map_err(text)?;
    expect(state == FillState::Frozen, format!("{state:?}"))?;
    expect(filled.nodes() == [first], format!("copies on {:?}", filled.nodes()))?;
    filled.expect_pages(first, Seals::FUTURE_WRITE)?;
    group.barrier().map_err(text)?;
    Ok(error)
}

fn freeze(group: &Local, buffer: &HostBuffer) -> Result<(), Error> {
    buffer.freeze(group).map(drop)
}

/// Checks that a later freeze makes the copies.
fn expect_copies(group: &Local, filled: &Filled) -> Result<(), String> {
    freeze(group, &filled.buffer).map_err(text)?;
    filled.expect_pages(own_node()?, sealed()).map(drop)
}

/// Checks a node that rank 0 fills after the buffer was allocated.
pub fn full_node(group: &Local) -> Outcome {
    let last = *with_memory()?.last().ok_or("no node")?;
    // More than the kernel can free on the node meanwhile.
    let filled = Filled::of_huge_pages(40, group, Pages::Small)?;
    let full = (group.rank() == 0).then(|| FullNode::new(last, 8 << 20)).transpose()?;
    group.barrier().map_err(text)?;
    let words = ["not enough memory", &format!("the free memory of node {last}"), "for the copies of buffer"];
    let error = expect_one_memory(group, &filled, freeze(group, &filled.buffer), &words)?;
    drop(full);
    group.barrier().map_err(text)?;
    expect_copies(group, &filled)?;
    Ok(error)
}

/// Checks a pool of huge pages that another buffer uses up after this one was allocated.
pub fn short_pool(group: &Local) -> Outcome {
    let last = *with_memory()?.last().ok_or("no node")?;
    let filled = Filled::new(group, Pages::Huge2M)?;
    let options = hostbuf::BufferOptions::new(12 << 20)
        .pages(Pages::Huge2M)
        .numa(last.to_string().parse().map_err(text)?);
    let taken = HostBuffer::allocate(group, options).map_err(text)?;
    let words = ["the reserved pool of pages of 2 MiB", &format!("of node {last} for the copies of buffer")];
    let error = expect_one_memory(group, &filled, freeze(group, &filled.buffer), &words)?;
    drop(taken);
    group.barrier().map_err(text)?;
    expect_copies(group, &filled)?;
    Ok(error)
}

/// Checks a process that keeps a writable mapping, so that the kernel does not seal the memory.
pub fn forked_writer(group: &Local) -> Outcome {
    let filled = Filled::new(group, Pages::Small)?;
    let writer = match (group.rank() == 0).then(|| {
        // SAFETY: the child only sleeps.
        unsafe { fork() }
    }) {
        Some(Ok(ForkResult::Child)) => loop {
            nix::unistd::pause();
        },
        Some(Ok(ForkResult::Parent { child })) => Some(child),
        Some(Err(error)) => return Err(error.to_string()),
        None => None,
    };
    group.barrier().map_err(text)?;
    let words = ["hostbuf copies only sealed memory", "still mapped writable"];
    let error = expect_one_memory(group, &filled, freeze(group, &filled.buffer), &words);
    if let Some(writer) = writer {
        kill(writer, Signal::SIGKILL).map_err(text)?;
        waitpid(writer, None).map_err(text)?;
    }
    group.barrier().map_err(text)?;
    expect_copies(group, &filled)?;
    error
}

/// Checks a copy of the last node to which another thread writes after its bytes were copied, while
/// the copies of other nodes are right. The thread keeps the file from being sealed until then.
pub fn wrong_checksum(group: &Local) -> Outcome {
    let filled = Filled::new(group, Pages::Small)?;
    let is_wrong = own_node()? == *with_memory()?.last().ok_or("no node")?;
    let frozen = watch(
        |file| {
            if !is_wrong {
                return true;
            }
            let page = FileMapping::new(file.as_fd(), 0, PAGE as u64, PAGE);
            let Ok(page) = page else { return false };
            let word = (page.start() + PAGE - 8) as *mut u64;
            // SAFETY: the last word of a mapped page, which the copying thread writes, too.
            let word = unsafe { AtomicU64::from_ptr(word) };
            let begun = Instant::now();
            while word.load(Ordering::Acquire) == 0 && begun.elapsed() < Duration::from_secs(60) {
                std::hint::spin_loop();
            }
            word.fetch_xor(1, Ordering::AcqRel);
            true
        },
        || freeze(group, &filled.buffer),
    );
    let error = expect_one_memory(group, &filled, frozen, &["of the copies of buffer", "instead of"])?;
    expect_copies(group, &filled)?;
    Ok(error)
}

/// Ends the rank that makes the copies of the last node by SIGKILL. The others must get an error.
pub fn killed(group: &Local) -> Outcome {
    let last = *with_memory()?.last().ok_or("no node")?;
    let filled = Filled::new(group, Pages::Small)?;
    let victim = own_node()? == last;
    let end = move |_: &std::fs::File| {
        if victim {
            let _ = kill(nix::unistd::getpid(), Signal::SIGKILL);
        }
        true
    };
    let frozen = watch(end, || freeze(group, &filled.buffer));
    match frozen {
        Ok(()) => Err("the freeze has succeeded without the killed rank".into()),
        Err(error) => {
            println!("survivor: {error}");
            std::process::exit(3);
        }
    }
}
