//! Brokers that are killed.

use std::time::{Duration, Instant};

use hostbuf_pool::{Pool, Producer, ProducerOptions};

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::reader_deaths::{pass, take_all};
use crate::stamps;
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

const BLOCKS: u32 = 8;
const BLOCK_BYTES: u64 = 16 << 10;
const LIMIT: u64 = 16 << 20;
const LIFE: Duration = Duration::from_millis(2);

fn make(pool: &Pool) -> Result<Producer, BrokenPromise> {
    pool.producer(&ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1)).map_err(|error| error.to_string())
}

/// Publishes frames, and reads each at once, until `end`. Also `other` gets them, if there is one.
pub(crate) fn exchange(
    (producer, pool): (&Producer, &Pool),
    mut other: Option<&mut RoleProcess>,
    end: Instant,
    stamp: &mut u64,
) -> Result<(), BrokenPromise> {
    while Instant::now() < end {
        let block = producer.take_timeout(Duration::from_secs(10)).map_err(|error| error.to_string())?;
        *stamp += 1;
        let token = stamps::publish(block, *stamp);
        if let Some(other) = &mut other {
            pass(&token, other);
        }
        let block = pool.acquire(&token).map_err(|error| error.to_string())?;
        if stamps::check(&block)? != *stamp {
            return Err("a token gave another frame".into());
        }
    }
    Ok(())
}

/// Kills the processes that are left, if there are any.
fn kill_all(others: &mut Vec<RoleProcess>) -> Result<(), BrokenPromise> {
    others.drain(..).try_for_each(|mut other| other.kill())
}

/// Kills the broker in each round; with `all` also a reader and a producer: at the same instant,
/// while the successor takes over, or between two deaths of brokers.
pub(crate) fn kill(rounds: u32, mut random: RandomInstants, all: bool) -> Result<String, BrokenPromise> {
    let mut broker = BrokerProcess::start(LIMIT)?;
    let (camera, viewer) = (broker.connect("camera")?, broker.connect("viewer")?);
    let producer = make(&camera)?;
    let (mut stamp, mut times) = (0, Vec::new());
    let warm_up = Instant::now() + Duration::from_millis(5);
    exchange((&producer, &viewer), None, warm_up, &mut stamp)?;
    let bytes = status(&viewer)?["bytes"].clone();
    for _ in 0..rounds {
        let mut others = Vec::new();
        if all {
            others.push(RoleProcess::start("producer", &[broker.name(), "4", "65536"])?);
            others.push(RoleProcess::start("reader", &[broker.name()])?);
            others.iter_mut().try_for_each(RoleProcess::wait_ready)?;
        }
        let end = Instant::now() + random.time(LIFE);
        exchange((&producer, &viewer), others.last_mut(), end, &mut stamp)?;
        let before = (camera.id(), viewer.id());
        broker.kill()?;
        if random.below(2) == 0 {
            kill_all(&mut others)?;
        }
        // Nothing is interrupted.
        exchange((&producer, &viewer), None, Instant::now() + random.time(LIFE), &mut stamp)?;
        broker.start_again()?;
        let begun = Instant::now();
        // A second death while clients connect.
        if random.below(4) == 0 {
            std::thread::sleep(random.time(LIFE));
            broker.kill()?;
            kill_all(&mut others)?;
            broker.start_again()?;
        }
        kill_all(&mut others)?;
        eventually("the clients have connected again", || {
            camera.id() != before.0 && viewer.id() != before.1
        })?;
        let mut seen = String::new();
        let known = eventually("the new broker knows all memory", || {
            let Ok(status) = status(&viewer) else { return false };
            seen = status.to_string();
            let segment = &status["segments"][0];
            status["bytes"] == bytes
                && segment["stage"] == "live"
                && segment["readers"].as_array().is_some_and(|readers| readers.len() == 1)
        });
        known.map_err(|why| format!("{why}: {seen}"))?;
        times.push(begun.elapsed());
        take_all(&producer)?;
        // It grants more, since all clients are known, and takes it back.
        drop(make(&viewer)?);
        eventually("the memory of a closed segment is free", || {
            status(&viewer).is_ok_and(|status| status["bytes"] == bytes)
        })?;
        exchange((&producer, &viewer), None, Instant::now() + random.time(LIFE), &mut stamp)?;
    }
    times.sort();
    let (median, last) = (times[times.len() / 2], times[times.len() - 1]);
    Ok(format!("{stamp} frames; taken over after {median:?} (median), {last:?} (longest)"))
}
