//! Clients that fork while they hold or write a block, and are killed. Their children go on.

#![allow(unsafe_code, reason = "forks children")]

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use hostbuf_os::process;
use hostbuf_pool::{ProducerOptions, Token};
use nix::unistd::{ForkResult, fork};

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::reader_deaths::take_all;
use crate::stamps;
use crate::test_broker::{BrokerProcess, connect, status};
use hostbuf_programs::random::RandomInstants;

/// The time in which a parent is killed after its fork.
const LIFE: Duration = Duration::from_micros(500);

/// Kills a reader and a producer with a forked child each in each round.
pub(crate) fn kill_parents(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(4 << 20)?;
    let pool = broker.connect("producer")?;
    let options = ProducerOptions::new(16 << 10, 8).retain(1).quota(8);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let (bytes, descriptors) = (status(&pool)?["bytes"].clone(), broker.descriptors());
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let stamp = u64::from(round) + 1;
        let mut reader = RoleProcess::start("forking-reader", &[broker.name()])?;
        reader.wait_ready()?;
        let token = stamps::publish(producer.take().map_err(|error| error.to_string())?, stamp);
        reader.send(&token.to_bytes());
        let mut writer = RoleProcess::start("forking-producer", &[broker.name()])?;
        let children = [child_of(&mut reader)?, child_of(&mut writer)?];
        std::thread::sleep(random.time(LIFE));
        let begun = Instant::now();
        reader.kill()?;
        writer.kill()?;
        take_all(&producer)?;
        eventually("the memory of a dead producer is free", || {
            status(&pool).is_ok_and(|status| status["bytes"] == bytes)
        })?;
        longest = longest.max(begun.elapsed());
        // The children have not ended, since their input is open.
        if children.into_iter().any(has_ended) {
            return Err("a forked child has something of its parent".into());
        }
        drop((reader, writer));
        eventually("the children have ended", || children.into_iter().all(has_ended))?;
    }
    eventually("the broker has as many descriptors as before", || broker.descriptors() == descriptors)?;
    Ok(format!("all blocks and bytes free within {longest:?} while the children go on"))
}

/// Returns the process id of the child that a process has forked.
fn child_of(parent: &mut RoleProcess) -> Result<i32, BrokenPromise> {
    let mut pid = [0; 4];
    parent.receive(&mut pid)?;
    Ok(i32::from_ne_bytes(pid))
}

fn has_ended(pid: i32) -> bool {
    process::state(pid).is_none_or(|state| matches!(state, 'Z' | 'X'))
}

/// Holds the block of a token, forks, and holds it until it is killed.
pub(crate) fn read(broker: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "forking-reader")?;
    let mut output = std::io::stdout();
    output.write_all(b"r").and_then(|()| output.flush()).map_err(|error| error.to_string())?;
    let mut token = [0; Token::SIZE];
    std::io::stdin().read_exact(&mut token).map_err(|error| error.to_string())?;
    let held = pool.acquire_bytes(&token).map_err(|error| error.to_string())?;
    fork_and_wait(|| !held.is_mapped() && pool.acquire_bytes(&token).is_err())
}

/// Publishes a block, takes another one, forks, and has both until it is killed.
pub(crate) fn write(broker: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "forking-producer")?;
    let producer = pool.producer(&ProducerOptions::new(64 << 10, 4)).map_err(|error| error.to_string())?;
    let take = || producer.take().map_err(|error| error.to_string());
    stamps::publish(take()?, 1);
    let block = take()?;
    fork_and_wait(|| !block.is_mapped() && producer.try_take().is_err())
}

/// Forks a child, writes its process id to the output, and waits for the end of the input. The
/// child does the same if `has_nothing` holds in it, and ends at once otherwise.
fn fork_and_wait(has_nothing: impl FnOnce() -> bool) -> Result<(), BrokenPromise> {
    // SAFETY: the child uses no lock that another thread of the parent has: that of the pool is not
    // taken by a forked process.
    match unsafe { fork() }.map_err(|errno| errno.to_string())? {
        ForkResult::Parent { child } => {
            let mut output = std::io::stdout();
            let sent = output.write_all(&child.as_raw().to_ne_bytes()).and_then(|()| output.flush());
            sent.map_err(|error| error.to_string())?;
            wait_for_end_of_input();
            Ok(())
        }
        ForkResult::Child => {
            if has_nothing() {
                wait_for_end_of_input();
            }
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(0) }
        }
    }
}

fn wait_for_end_of_input() {
    let mut input = libc::pollfd { fd: 0, events: 0, revents: 0 };
    // SAFETY: the structure is valid during the call.
    while unsafe { libc::poll(&raw mut input, 1, -1) } != 1 {}
}
