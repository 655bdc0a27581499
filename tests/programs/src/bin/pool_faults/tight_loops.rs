//! Processes that do nothing but take and publish blocks, or acquire and release one. Most kills
//! meet them between two accesses to the shared tables.

use std::io::{Read, Write};
use std::time::Duration;

use hostbuf_pool::{AcquireError, ArrayLayout, ElementType, ProducerOptions, Token};

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::reader_deaths::take_all;
use crate::stamps;
use crate::test_broker::{BrokerProcess, connect, status};
use hostbuf_programs::random::RandomInstants;

const BLOCKS: u32 = 8;
const BLOCK_BYTES: u64 = 4096;
const LIMIT: u64 = 16 << 20;
/// The time in which a process is killed after it has begun its loop.
const LIFE: Duration = Duration::from_micros(500);

/// Kills a reader and a producer in each round.
pub(crate) fn kill(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(LIMIT)?;
    let pool = broker.connect("camera")?;
    let options = ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).quota(BLOCKS);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let bytes = status(&pool)?["bytes"].clone();
    for round in 0..rounds {
        let mut reader = RoleProcess::start("tight-reader", &[broker.name()])?;
        let block = producer.take_timeout(Duration::from_secs(10)).map_err(|error| error.to_string())?;
        reader.send(&stamps::publish(block, u64::from(round)).to_bytes());
        reader.wait_ready()?;
        std::thread::sleep(random.time(LIFE));
        reader.kill()?;
        take_all(&producer)?;
        let mut writer = RoleProcess::start("tight-producer", &[broker.name()])?;
        writer.wait_ready()?;
        std::thread::sleep(random.time(LIFE));
        writer.kill()?;
        eventually("the memory of a dead producer is free", || {
            status(&pool).is_ok_and(|status| status["bytes"] == bytes)
        })?;
    }
    Ok("a reader and a producer each".into())
}

fn text(error: impl std::fmt::Display) -> BrokenPromise {
    error.to_string()
}

fn say_ready() -> Result<(), BrokenPromise> {
    let mut output = std::io::stdout();
    output.write_all(b"r").and_then(|()| output.flush()).map_err(text)
}

/// Acquires and releases the block of the token in its input, without an end.
pub(crate) fn read(broker: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "victim")?;
    let mut bytes = [0; Token::SIZE];
    std::io::stdin().read_exact(&mut bytes).map_err(text)?;
    let token = Token::from_bytes(&bytes).map_err(text)?;
    drop(pool.acquire(&token).map_err(text)?);
    say_ready()?;
    loop {
        match pool.acquire(&token) {
            // Two holds at times.
            Ok(block) => drop(block.clone()),
            Err(AcquireError::Gone) => {}
            Err(error) => return Err(text(error)),
        }
    }
}

/// Takes and publishes blocks, without an end.
pub(crate) fn write(broker: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "victim")?;
    let producer = pool.producer(&ProducerOptions::new(BLOCK_BYTES, BLOCKS)).map_err(text)?;
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[BLOCK_BYTES]).map_err(text)?;
    say_ready()?;
    loop {
        producer.take().map_err(text)?.publish(layout).map_err(text)?;
    }
}
