//! The roles of the processes that are killed.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use hostbuf_pool::{AcquireError, Broker, BrokerOptions, ProducerOptions, Token};
use nix::sys::eventfd::EventFd;

use crate::broken_promise::BrokenPromise;
use crate::test_broker::connect;
use crate::{forked_children, mirror_deaths, stamps, step_roles, tight_loops, trespass};

/// Plays a role until the process is killed.
pub(crate) fn run(role: &str, arguments: &[&str]) -> ExitCode {
    let result = match (role, arguments) {
        ("broker", [name, limit, linger]) => broker(name, limit, linger),
        ("reader", [name]) => reader(name),
        ("producer", [name, blocks, block_bytes]) => producer(name, blocks, block_bytes),
        ("asker", [name, block_bytes]) => asker(name, block_bytes),
        ("stepping-reader", [name]) => step_roles::read(name),
        ("stepping-writer", [name]) => step_roles::write(name),
        ("tight-reader", [name]) => tight_loops::read(name),
        ("tight-producer", [name]) => tight_loops::write(name),
        ("trespasser", [name]) => trespass::trespass(name),
        ("forking-reader", [name]) => forked_children::read(name),
        ("forking-producer", [name]) => forked_children::write(name),
        ("mirror-receiver", [name, address]) => mirror_deaths::receive(name, address),
        ("mirror-sender", [name, address]) => mirror_deaths::send(name, address),
        _ => Err(format!("no role {role} {arguments:?}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pool_faults {role}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl std::fmt::Display) -> BrokenPromise {
    error.to_string()
}

fn say_ready() -> Result<(), BrokenPromise> {
    let mut output = std::io::stdout();
    output.write_all(b"r").and_then(|()| output.flush()).map_err(text)
}

fn broker(name: &str, limit: &str, linger: &str) -> Result<(), BrokenPromise> {
    let limit: u64 = limit.parse().map_err(text)?;
    let linger = Duration::from_millis(linger.parse().map_err(text)?);
    let options = BrokerOptions::new().name(name).limit(limit).per_client(limit).linger(linger);
    let mut broker = Broker::open(&options).map_err(text)?;
    say_ready()?;
    use std::os::fd::AsFd;
    // Nobody writes to it: the broker serves until it is killed.
    let stop = EventFd::new().map_err(text)?;
    broker.serve(stop.as_fd()).map_err(text)
}

/// Reads tokens from its input, acquires their blocks, and holds some of them.
fn reader(name: &str) -> Result<(), BrokenPromise> {
    let pool = connect(name, "victim")?;
    say_ready()?;
    let mut held = Vec::new();
    let mut bytes = [0; Token::SIZE];
    let mut input = std::io::stdin().lock();
    while input.read_exact(&mut bytes).is_ok() {
        match pool.acquire_bytes(&bytes) {
            Ok(block) => {
                stamps::check(&block)?;
                held.push(block);
            }
            Err(AcquireError::Gone) => {}
            Err(AcquireError::Quota { .. }) => held.clear(),
            Err(error) => return Err(text(error)),
        }
    }
    Ok(())
}

/// Makes a segment, and publishes frames whose tokens it writes to its output.
fn producer(name: &str, blocks: &str, block_bytes: &str) -> Result<(), BrokenPromise> {
    let (blocks, block_bytes) = (blocks.parse().map_err(text)?, block_bytes.parse().map_err(text)?);
    let pool = connect(name, "victim")?;
    say_ready()?;
    let producer = pool.producer(&ProducerOptions::new(block_bytes, blocks)).map_err(text)?;
    let mut output = std::io::stdout();
    for stamp in 1.. {
        let token = stamps::publish(producer.take().map_err(text)?, stamp);
        output.write_all(&token.to_bytes()).and_then(|()| output.flush()).map_err(text)?;
    }
    Ok(())
}

/// Asks for a segment when its input says so, and writes whether it has got it.
fn asker(name: &str, block_bytes: &str) -> Result<(), BrokenPromise> {
    let pool = connect(name, "asker")?;
    let block_bytes = block_bytes.parse().map_err(text)?;
    say_ready()?;
    std::io::stdin().read_exact(&mut [0]).map_err(text)?;
    let producer = pool.producer(&ProducerOptions::new(block_bytes, 2).readers(1));
    std::io::stdout().write_all(if producer.is_ok() { b"y" } else { b"n" }).map_err(text)?;
    std::io::stdout().flush().map_err(text)?;
    // It keeps the segment until it is told to end.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}
