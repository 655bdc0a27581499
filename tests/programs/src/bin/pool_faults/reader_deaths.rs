//! Readers that are killed or stopped.

use std::time::{Duration, Instant};

use hostbuf_pool::{Block, Producer, ProducerOptions};
use nix::sys::signal::Signal;

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::random::RandomInstants;
use crate::stamps;
use crate::test_broker::{BrokerProcess, status};

const BLOCKS: u32 = 8;
const BLOCK_BYTES: u64 = 16 << 10;
const LIMIT: u64 = 16 << 20;
/// The time in which a reader is killed after it has begun to read.
const LIFE: Duration = Duration::from_millis(2);

/// Publishes frames to a reader until `end`.
fn feed(producer: &Producer, reader: &mut RoleProcess, end: Instant, stamp: &mut u64) {
    while Instant::now() < end {
        let Ok(Some(block)) = producer.try_take() else { continue };
        *stamp += 1;
        let token = stamps::publish(block, *stamp);
        reader.send(&token.to_bytes());
    }
}

/// Takes all blocks at once, and returns the time that it took.
pub(crate) fn take_all(producer: &Producer) -> Result<Duration, BrokenPromise> {
    let begun = Instant::now();
    let take = |_| producer.take_timeout(Duration::from_secs(10)).map_err(|error| error.to_string());
    // One block is retained for readers, so only the others are free.
    let blocks = (0..BLOCKS - 1).map(take).collect::<Result<Vec<Block>, _>>()?;
    drop(blocks);
    Ok(begun.elapsed())
}

/// Kills a reader in each round.
pub(crate) fn kill(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(LIMIT)?;
    let pool = broker.connect("producer")?;
    let options = ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).quota(BLOCKS);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let descriptors = broker.descriptors();
    let (mut stamp, mut times) = (0, Vec::new());
    for _ in 0..rounds {
        let mut reader = RoleProcess::start("reader", &[broker.name()])?;
        reader.wait_ready()?;
        feed(&producer, &mut reader, Instant::now() + random.time(LIFE), &mut stamp);
        reader.kill()?;
        times.push(take_all(&producer)?);
    }
    eventually("the broker has closed what it had for the readers", || broker.descriptors() == descriptors)?;
    let clients = status(&pool)?["clients"].as_array().map_or(0, Vec::len);
    if clients != 1 {
        return Err(format!("{clients} clients are left"));
    }
    times.sort();
    let (median, last) = (times[times.len() / 2], times[times.len() - 1]);
    Ok(format!("{stamp} frames; all blocks free after {median:?} (median), {last:?} (longest)"))
}

/// Stops a reader in each round.
pub(crate) fn stop(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    const QUOTA: u32 = 3;
    let broker = BrokerProcess::start(LIMIT)?;
    let pool = broker.connect("producer")?;
    let options = ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).quota(QUOTA);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let mut stamp = 0;
    for _ in 0..rounds {
        let mut reader = RoleProcess::start("reader", &[broker.name()])?;
        reader.wait_ready()?;
        feed(&producer, &mut reader, Instant::now() + random.time(LIFE), &mut stamp);
        reader.signal(Signal::SIGSTOP);
        for _ in 0..100 {
            let block = producer.take_timeout(Duration::from_secs(10)).map_err(|error| error.to_string())?;
            stamp += 1;
            stamps::publish(block, stamp);
        }
        let rest = BLOCKS - QUOTA - 1;
        let take = |_| producer.try_take().ok().flatten().ok_or("a stopped reader keeps more than its quota");
        drop((0..rest).map(take).collect::<Result<Vec<Block>, _>>()?);
        reader.kill()?;
        take_all(&producer)?;
    }
    Ok(format!("{stamp} frames"))
}
