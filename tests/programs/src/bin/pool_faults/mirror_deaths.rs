//! Mirrors between two brokers, of which one process is killed in each round.

use std::io::Read;
use std::time::{Duration, Instant};

use hostbuf_mirror::{
    MirrorError, MirrorReceiver, MirrorReceiverOptions, MirrorRefusal, MirrorSender, MirrorSenderOptions,
};
use hostbuf_pool::{Pool, Producer, ProducerOptions, Token};

use crate::broken_promise::BrokenPromise;
use crate::child::RoleProcess;
use crate::stamps;
use crate::test_broker::{BrokerProcess, connect};
use hostbuf_programs::random::RandomInstants;

const BLOCKS: u32 = 8;
const FRAME_BYTES: u64 = 1 << 20;
const LIMIT: u64 = 64 << 20;
/// The time in which a process is killed after a frame was begun.
const LIFE: Duration = Duration::from_millis(3);
/// The time for which the copies of a killed receiver stay readable.
const LINGER: Duration = Duration::from_secs(1);
/// The time for a frame, also while another process starts.
const DEADLINE: Duration = Duration::from_secs(30);

fn text(error: impl std::fmt::Display) -> BrokenPromise {
    error.to_string()
}

/// Receives frames at an address until the process is killed, and writes the address first.
pub(crate) fn receive(broker: &str, address: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "receiver")?;
    let options = MirrorReceiverOptions::new().block_bytes(FRAME_BYTES).blocks(BLOCKS).retain(2);
    let receiver = MirrorReceiver::listen(&pool, address, options).map_err(text)?;
    println!("{}", receiver.address());
    // It receives until it is killed.
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// Sends the frames of the tokens on standard input, and writes the tokens of their copies.
pub(crate) fn send(broker: &str, address: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "sender")?;
    let sender = MirrorSender::connect(address, MirrorSenderOptions::new()).map_err(text)?;
    for line in std::io::stdin().lines() {
        let token: Token = line.map_err(text)?.parse().map_err(text)?;
        let copy = match sender.send(&pool, &token, Instant::now() + DEADLINE) {
            Ok(copy) => copy,
            // A predecessor has sent it.
            Err(MirrorError::Refused {
                refusal: MirrorRefusal::NotNewer { copy: Some(copy), .. }, ..
            }) => *copy,
            Err(error) => return Err(error.to_string()),
        };
        println!("{copy}");
    }
    Ok(())
}

/// Returns the next line that a process writes, or `None` if it has ended.
fn line(process: &mut RoleProcess) -> Result<Option<String>, BrokenPromise> {
    let mut line = Vec::new();
    let mut byte = [0];
    while process.output.read(&mut byte).map_err(text)? == 1 {
        if byte == *b"\n" {
            return String::from_utf8(line).map(Some).map_err(text);
        }
        line.extend(byte);
    }
    Ok(None)
}

/// Kills the sender, the receiver or a broker in each round, at a random instant after a frame was
/// begun. The frame arrives whole, through the processes that take over.
pub(crate) fn kill(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let (mut here, mut there) =
        (BrokerProcess::start_at("here", LIMIT, LINGER)?, BrokerProcess::start_at("there", LIMIT, LINGER)?);
    let (camera, viewer) = (here.connect("camera")?, there.connect("viewer")?);
    let options = ProducerOptions::new(FRAME_BYTES, BLOCKS).retain(2).quota(BLOCKS);
    let producer = camera.producer(&options).map_err(text)?;
    let mut receiver = RoleProcess::start("mirror-receiver", &[there.name(), "127.0.0.1:0"])?;
    let address = line(&mut receiver)?.ok_or("the receiver has no address")?;
    let mut sender = RoleProcess::start("mirror-sender", &[here.name(), &address])?;
    let mut killed = [0u32; 4];
    for round in 1..=u64::from(rounds) {
        let token = publish(&producer, round)?;
        let request = format!("{token}\n");
        sender.send(request.as_bytes());
        let begun = Instant::now();
        let life = random.time(LIFE);
        while begun.elapsed() < life {
            std::hint::spin_loop();
        }
        let victim = random.below(4) as usize;
        killed[victim] += 1;
        match victim {
            0 => {
                sender.kill()?;
                sender = RoleProcess::start("mirror-sender", &[here.name(), &address])?;
                sender.send(request.as_bytes());
            }
            1 => {
                receiver.kill()?;
                receiver = RoleProcess::start("mirror-receiver", &[there.name(), &address])?;
                line(&mut receiver)?.ok_or("the receiver does not listen again")?;
            }
            other => {
                let broker = if other == 2 { &mut here } else { &mut there };
                broker.kill()?;
                broker.start_again()?;
            }
        }
        let copy = line(&mut sender)?.ok_or_else(|| format!("round {round}: the sender has failed"))?;
        check(&viewer, &copy, round)?;
    }
    Ok(format!(
        "killed {} senders, {} receivers, {} brokers; all copies whole",
        killed[0],
        killed[1],
        killed[2] + killed[3]
    ))
}

fn publish(producer: &Producer, round: u64) -> Result<Token, BrokenPromise> {
    let block = producer.take_timeout(DEADLINE).map_err(text)?;
    Ok(stamps::publish(block, round))
}

/// Checks that a copy is whole and that of the round.
fn check(viewer: &Pool, copy: &str, round: u64) -> Result<(), BrokenPromise> {
    let copy: Token = copy.parse().map_err(text)?;
    let block = viewer.acquire(&copy).map_err(|error| format!("round {round}: {error}"))?;
    match stamps::check(&block)? {
        stamp if stamp == round => Ok(()),
        stamp => Err(format!("round {round}: the copy is that of round {stamp}")),
    }
}
