//! Readers that are killed or stopped.

use std::time::{Duration, Instant};

use hostbuf_pool::{Block, Pool, Producer, ProducerOptions, Token};

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::stamps;
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

const BLOCKS: u32 = 8;
const BLOCK_BYTES: u64 = 16 << 10;
const LIMIT: u64 = 16 << 20;
/// The time in which a reader is killed after it has begun to read.
const LIFE: Duration = Duration::from_millis(2);

/// The time between two frames, in which a reader acquires the first of them. Faster ones are gone
/// when their tokens arrive.
const PACE: Duration = Duration::from_micros(50);
/// The number of rounds of which one looks at what the reader holds.
const LOOK: u32 = 8;

/// Passes a token to a reader, and gives it time to acquire the block.
pub(crate) fn pass(token: &Token, reader: &mut RoleProcess) {
    let sent = Instant::now();
    reader.send(&token.to_bytes());
    while sent.elapsed() < PACE {
        std::hint::spin_loop();
    }
}

/// Publishes frames to a reader until `end`.
fn feed(producer: &Producer, reader: &mut RoleProcess, end: Instant, stamp: &mut u64) {
    while Instant::now() < end {
        let Ok(Some(block)) = producer.try_take() else { continue };
        *stamp += 1;
        pass(&stamps::publish(block, *stamp), reader);
    }
}

/// Returns the number of blocks that the only reader of the pool holds.
fn holds(pool: &Pool) -> Result<u64, BrokenPromise> {
    let status = status(pool)?;
    let readers = status["segments"][0]["readers"].as_array();
    Ok(readers.and_then(|readers| readers.first()?["holds"].as_u64()).unwrap_or(0))
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
    // An answer of the broker: it has closed its copies of what it has sent before.
    status(&pool)?;
    let descriptors = broker.descriptors();
    let (mut stamp, mut times, mut held) = (0, Vec::new(), 0);
    for round in 0..rounds {
        let mut reader = RoleProcess::start("reader", &[broker.name()])?;
        reader.wait_ready()?;
        feed(&producer, &mut reader, Instant::now() + random.time(LIFE), &mut stamp);
        if round % LOOK == 0 {
            reader.stop()?;
            held += holds(&pool)?;
        }
        reader.kill()?;
        times.push(take_all(&producer)?);
    }
    eventually("the broker has closed what it had for the readers", || broker.descriptors() == descriptors)?;
    let clients = status(&pool)?["clients"].as_array().map_or(0, Vec::len);
    if clients != 1 {
        return Err(format!("{clients} clients are left"));
    }
    let looks = rounds.div_ceil(LOOK);
    if held == 0 {
        return Err(format!("the readers held no block in {looks} rounds"));
    }
    times.sort();
    let (median, last) = (times[times.len() / 2], times[times.len() - 1]);
    Ok(format!(
        "{stamp} frames, {held} blocks held in {looks} rounds; all free after {median:?} (median), {last:?} (longest)"
    ))
}

/// Stops a reader in each round.
pub(crate) fn stop(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    const QUOTA: u32 = 3;
    let broker = BrokerProcess::start(LIMIT)?;
    let pool = broker.connect("producer")?;
    let options = ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).quota(QUOTA);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let (mut stamp, mut held) = (0, 0);
    for _ in 0..rounds {
        let mut reader = RoleProcess::start("reader", &[broker.name()])?;
        reader.wait_ready()?;
        feed(&producer, &mut reader, Instant::now() + random.time(LIFE), &mut stamp);
        reader.stop()?;
        held += holds(&pool)?;
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
    if held == 0 {
        return Err(format!("the readers held no block in {rounds} rounds"));
    }
    Ok(format!("{stamp} frames, {held} blocks held by stopped readers"))
}
