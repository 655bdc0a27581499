//! Producers that are killed.

use std::io::Read;
use std::time::Duration;

use hostbuf_pool::{AcquireError, Token};

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::stamps;
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

const LIMIT: u64 = 1 << 20;
/// The time in which a producer is killed after it has connected, so in about half of the rounds
/// while its segment is made.
const LIFE: Duration = Duration::from_millis(6);

/// Kills a producer in each round.
pub(crate) fn kill(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(LIMIT)?;
    let pool = broker.connect("reader")?;
    // An answer of the broker: it has closed its copies of what it has sent before.
    status(&pool)?;
    let descriptors = broker.descriptors();
    let (mut read, mut gone, mut without) = (0, 0, 0);
    for _ in 0..rounds {
        let mut producer = RoleProcess::start("producer", &[broker.name(), "4", "65536"])?;
        producer.wait_ready()?;
        std::thread::sleep(random.time(LIFE));
        producer.kill()?;
        // The last token may have been cut.
        let mut bytes = Vec::new();
        producer.output.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        let tokens: Vec<&[u8]> = bytes.chunks_exact(Token::SIZE).collect();
        without += u32::from(tokens.is_empty());
        let mut held = Vec::new();
        for (number, token) in tokens.iter().enumerate() {
            match pool.acquire_bytes(token) {
                Ok(block) => {
                    let stamp = stamps::check(&block)?;
                    if stamp != number as u64 + 1 {
                        return Err(format!("token {number} gave the frame with the stamp {stamp}"));
                    }
                    read += 1;
                    held.push(block);
                }
                Err(AcquireError::Gone) => gone += 1,
                Err(AcquireError::Quota { .. }) => held.clear(),
                Err(error) => return Err(error.to_string()),
            }
        }
        // Its memory is kept while it is read, and is within the limit.
        for block in &held {
            stamps::check(block)?;
        }
        drop(held);
        let mut seen = String::new();
        let freed = eventually("the memory of a dead producer is free", || {
            let Ok(status) = status(&pool) else { return false };
            seen = status.to_string();
            status["bytes"] == 0
        });
        freed.map_err(|why| format!("{why}: {seen}"))?;
    }
    eventually("the broker has closed the files of the producers", || broker.descriptors() == descriptors)?;
    Ok(format!("{read} frames read, {gone} tokens late, {without} producers killed before their first frame"))
}
