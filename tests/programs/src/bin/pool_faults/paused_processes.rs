//! Processes that are stopped for a while, and go on.

use std::time::{Duration, Instant};

use hostbuf_pool::{Block, Pool, PoolMode, PoolOptions, Producer, ProducerOptions};

use crate::broken_promise::BrokenPromise;
use crate::broker_deaths::exchange;
use crate::child::eventually;
use crate::stamps;
use crate::step_roles::{BLOCK_BYTES, BLOCKS, QUOTA, ReadStep, SteppingReader, SteppingWriter};
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

const LIMIT: u64 = 16 << 20;
/// The time in which a process is stopped after it got something to do, and the least time for
/// which it stays so.
const INSTANT: Duration = Duration::from_millis(2);
/// The time for which a producer waits for a free block.
const TAKE_LIMIT: Duration = Duration::from_secs(10);
/// The time for which a client waits for a stopped broker.
const CONNECT_LIMIT: Duration = Duration::from_millis(20);

/// Stops a reader, a producer and the broker in turn, one in each round, for at least `pause`.
pub(crate) fn pause(
    rounds: u32,
    mut random: RandomInstants,
    pause: Duration,
) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(LIMIT)?;
    let (camera, viewer) = (broker.connect("camera")?, broker.connect("viewer")?);
    let options = ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).quota(QUOTA);
    let producer = camera.producer(&options).map_err(|error| error.to_string())?;
    let mut writer = SteppingWriter::start(broker.name())?;
    let mut reader = SteppingReader::start(broker.name())?;
    let mut stamp = 0;
    writer.step_to(&mut reader)?;
    publish_to(&producer, &mut reader, &mut stamp)?;
    exchange((&producer, &viewer), None, Instant::now() + INSTANT, &mut stamp)?;
    let another = || camera.producer(&options).map(drop).map_err(|error| error.to_string());
    let (bytes, descriptors) = (status(&viewer)?["bytes"].clone(), broker.descriptors());
    for round in 0..rounds {
        let until = random.time(INSTANT).max(pause);
        let until = || Instant::now() + until;
        match round % 3 {
            0 => {
                let block = producer.take_timeout(TAKE_LIMIT).map_err(|error| error.to_string())?;
                stamp += 1;
                reader.ask(&stamps::publish(block, stamp).to_bytes());
                std::thread::sleep(random.time(INSTANT));
                reader.0.stop()?;
                exchange((&producer, &viewer), None, until(), &mut stamp)?;
                let take = |_| {
                    producer.try_take().ok().flatten().ok_or("a stopped reader keeps more than its quota")
                };
                drop((0..BLOCKS - QUOTA - 1).map(take).collect::<Result<Vec<Block>, _>>()?);
                another()?;
                reader.0.resume();
                // It was stopped before or after it had the block.
                let step = reader.answer()?;
                if !matches!(step, ReadStep::Frame(_) | ReadStep::Gone) {
                    return Err(format!("a reader that goes on got {step:?}"));
                }
            }
            1 => {
                let frame = writer.step()?.ok_or("a writer has no free block")?;
                let held = viewer.acquire_bytes(&frame.token).map_err(|error| error.to_string())?;
                writer.ask();
                std::thread::sleep(random.time(INSTANT));
                writer.process.stop()?;
                exchange((&producer, &viewer), None, until(), &mut stamp)?;
                if stamps::check(&held)? != frame.stamp {
                    return Err("a held frame has changed".into());
                }
                drop(held);
                another()?;
                writer.process.resume();
                writer.answer()?.ok_or("a writer that goes on has no free block")?;
            }
            _ => {
                broker.process().stop()?;
                exchange((&producer, &viewer), None, until(), &mut stamp)?;
                writer.step_to(&mut reader)?;
                let options = PoolOptions::new("late").mode(PoolMode::Required).socket(broker.name());
                if Pool::connect(options.timeout(CONNECT_LIMIT)).is_ok() {
                    return Err("a stopped broker has answered".into());
                }
                broker.process().resume();
            }
        }
        another()?;
        writer.step_to(&mut reader)?;
        publish_to(&producer, &mut reader, &mut stamp)?;
        exchange((&producer, &viewer), None, Instant::now() + INSTANT, &mut stamp)?;
        eventually("the memory of closed segments is free", || {
            status(&viewer).is_ok_and(|status| status["bytes"] == bytes)
        })?;
    }
    eventually("the broker has as many descriptors as before", || broker.descriptors() == descriptors)?;
    reader.0.end()?;
    writer.process.end()?;
    Ok(format!("{stamp} frames of others"))
}

/// Publishes a frame to a reader in a process of its own, which must get it.
fn publish_to(
    producer: &Producer,
    reader: &mut SteppingReader,
    stamp: &mut u64,
) -> Result<(), BrokenPromise> {
    let block = producer.take_timeout(TAKE_LIMIT).map_err(|error| error.to_string())?;
    *stamp += 1;
    match reader.step(&stamps::publish(block, *stamp).to_bytes())? {
        ReadStep::Frame(found) if found == *stamp => Ok(()),
        step => Err(format!("a reader got {step:?} instead of frame {stamp}")),
    }
}
