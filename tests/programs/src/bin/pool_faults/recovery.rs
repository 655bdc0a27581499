//! Brokers that are killed while a client is stopped: what their successors grant.

use std::time::Duration;

use hostbuf_pool::{BrokerRefusal, PoolError, ProducerOptions};

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::step_roles::{BLOCK_BYTES, SteppingWriter};
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

/// The length of the blocks of an asking client in bytes.
const ASKED_BYTES: u64 = 64 << 10;
/// The time in which a client is stopped after it has asked, and in which it goes on after another
/// one has asked.
const INSTANT: Duration = Duration::from_millis(2);

/// Stops a client that has asked for the last bytes, and kills the broker, in each round. The grant
/// may be on its way then. Another client asks the successor for the same bytes: one of them gets
/// them.
pub(crate) fn ask_twice(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    // Two blocks, a table and a row.
    let each = 2 * ASKED_BYTES + 2 * 8192;
    let limit = each + each / 2;
    let mut broker = BrokerProcess::start(limit)?;
    let watcher = broker.connect("watcher")?;
    let block_bytes = ASKED_BYTES.to_string();
    let mut first_granted = 0;
    for _ in 0..rounds {
        let ask = || RoleProcess::start("asker", &[broker.name(), &block_bytes]);
        let mut askers = [ask()?, ask()?];
        askers.iter_mut().try_for_each(RoleProcess::wait_ready)?;
        let [first, second] = &mut askers;
        first.send(b"g");
        std::thread::sleep(random.time(INSTANT));
        first.stop()?;
        broker.kill()?;
        broker.start_again()?;
        second.send(b"g");
        std::thread::sleep(random.time(INSTANT));
        first.resume();
        let mut answers = [[0], [0]];
        first.receive(&mut answers[0])?;
        second.receive(&mut answers[1])?;
        let bytes = status(&watcher)?["bytes"].as_u64().unwrap_or(u64::MAX);
        let granted = answers.iter().filter(|answer| **answer == *b"y").count();
        if granted != 1 || bytes > limit {
            return Err(format!("{granted} clients got memory, {bytes} of {limit} bytes"));
        }
        first_granted += u32::from(answers[0] == *b"y");
        askers.iter_mut().try_for_each(RoleProcess::kill)?;
        eventually("the memory of all clients is free", || {
            status(&watcher).is_ok_and(|status| status["bytes"] == 0)
        })?;
    }
    Ok(format!("the stopped client got the memory in {first_granted}"))
}

/// Stops a client that has memory, and kills the broker, in each round. The successor grants
/// nothing, and names the client, until the client goes on.
pub(crate) fn wait_for_client(rounds: u32) -> Result<String, BrokenPromise> {
    let mut broker = BrokerProcess::start(16 << 20)?;
    let watcher = broker.connect("watcher")?;
    let mut writer = SteppingWriter::start(broker.name())?;
    let options = ProducerOptions::new(BLOCK_BYTES, 2);
    for _ in 0..rounds {
        let bytes = status(&watcher)?["bytes"].clone();
        writer.process.stop()?;
        broker.kill()?;
        broker.start_again()?;
        let details = match watcher.producer(&options).map(drop) {
            Err(PoolError::Refused(BrokerRefusal::Recovering { details })) => details,
            other => return Err(format!("{other:?} instead of a refusal")),
        };
        let pid = writer.process.pid();
        if !details.contains(&format!("process {pid} (")) || !details.contains("stopped") {
            return Err(format!("process {pid} is not in \"{details}\""));
        }
        let status_now = status(&watcher)?;
        if status_now["unaccounted"][0]["pid"] != pid {
            return Err(format!("process {pid} is not in {status_now}"));
        }
        writer.process.resume();
        eventually("the new broker knows all memory", || {
            status(&watcher).is_ok_and(|status| {
                status["bytes"] == bytes && status["unaccounted"] == serde_json::json!([])
            })
        })?;
        watcher.producer(&options).map(drop).map_err(|error| error.to_string())?;
        writer.step()?.ok_or("a writer that goes on has no free block")?;
        eventually("the memory of a closed segment is free", || {
            status(&watcher).is_ok_and(|status| status["bytes"] == bytes)
        })?;
    }
    writer.process.end()?;
    Ok("each successor waited".into())
}
