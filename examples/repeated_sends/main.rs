//! Sends the same buffers repeatedly, in three ways: registers for each send, registers through the
//! cache, and sends from memory that is registered from the start.
//!
//! ```text
//! repeated_sends [--device cuda|rdma|mlock] [--buffers 64] [--bytes 1048576] [--rounds 20]
//! ```
//!
//! Without `--device` it uses the best device of the machine: a GPU, else an RDMA device (with the
//! feature `rdma`), else locked pages and a socket. The received data is compared with the data
//! sent.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "rdma")]
mod remote;
mod sender;
mod socket;

use std::time::{Duration, Instant};

use sender::{Outcome, Sender};

use hostbuf::register::{
    Access, Budget, MonitorMode, PinnedAlloc, Probe, Registrar, Registration, RegistrationCache, Span, Stats,
};

struct Arguments {
    device: Option<String>,
    buffers: usize,
    bytes: usize,
    rounds: usize,
}

fn arguments() -> Outcome<Arguments> {
    let mut arguments = Arguments { device: None, buffers: 64, bytes: 1 << 20, rounds: 20 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word} requires a value"))?;
        let number = || {
            let wrong = format!("{word} {value}: expected a whole number from 1 to {}", usize::MAX);
            value.parse().ok().filter(|&n| n > 0).ok_or(wrong)
        };
        match word.as_str() {
            "--device" => arguments.device = Some(value),
            "--buffers" => arguments.buffers = number()?,
            "--bytes" => arguments.bytes = number()?,
            "--rounds" => arguments.rounds = number()?,
            _ => {
                return Err(format!(
                    "unexpected argument '{word}': expected --device, --buffers, --bytes or --rounds"
                )
                .into());
            }
        }
    }
    fits(&arguments)?;
    Ok(arguments)
}

/// Checks that the host has memory for all buffers: those to send, those received, and blocks of
/// powers of two.
fn fits(&Arguments { buffers, bytes, .. }: &Arguments) -> Outcome<()> {
    let asked = format!("--buffers {buffers} --bytes {bytes}");
    let block = bytes.checked_next_power_of_two();
    let needed = block.and_then(|block| bytes.checked_mul(2)?.checked_add(block)?.checked_mul(buffers));
    let needed = needed.ok_or(format!("{asked}: more than the address space holds; request less"))? as u64;
    let free = available().unwrap_or(u64::MAX / 8);
    if needed > free {
        let (needed, free) = (hostbuf::Bytes(needed), hostbuf::Bytes(free));
        return Err(format!(
            "{asked}: needs {needed} of memory, and {free} are free on this host; request less"
        )
        .into());
    }
    Ok(())
}

/// Returns the host's free memory in bytes.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()? * 1024)
}

fn main() -> Outcome<()> {
    let arguments = arguments()?;
    let wanted = |name| arguments.device.as_deref().is_none_or(|device| device == name);
    let mut missing = Vec::new();
    #[cfg(feature = "cuda")]
    if wanted("cuda") {
        match hostbuf::register::CudaHost::probe() {
            Probe::Ready(what) => {
                return run(&what, gpu::Gpu::new(arguments.buffers * arguments.bytes)?, &arguments);
            }
            Probe::Missing(why) => missing.push(format!("cuda: {why}")),
        }
    }
    #[cfg(feature = "rdma")]
    if wanted("rdma") {
        match hostbuf::register::Verbs::probe() {
            Probe::Ready(what) => {
                let remote = remote::Remote::new(arguments.buffers * arguments.bytes)?;
                return run(&what, remote, &arguments);
            }
            Probe::Missing(why) => missing.push(format!("rdma: {why}")),
        }
    }
    if cfg!(not(feature = "rdma")) && wanted("rdma") {
        missing.push("rdma: this was built without the feature rdma".into());
    }
    if wanted("mlock") {
        match hostbuf::register::Mlock::probe() {
            Probe::Ready(what) => {
                for why in missing {
                    println!("not here      {why}");
                }
                return run(&what, socket::Socket::new(arguments.buffers)?, &arguments);
            }
            Probe::Missing(why) => missing.push(format!("mlock: {why}")),
        }
    }
    if let (Some(device), true) = (&arguments.device, missing.is_empty()) {
        return Err(format!("--device {device}: expected cuda, rdma or mlock").into());
    }
    Err(missing.join("; ").into())
}

/// Sends all buffers in all ways, and describes the time of each.
fn run<S: Sender>(what: &str, mut sender: S, arguments: &Arguments) -> Outcome<()> {
    let &Arguments { buffers, bytes, rounds, .. } = arguments;
    let registrar = sender.registrar();
    println!("device        {}: {what}", registrar.name());
    println!("sent          {buffers} buffers of {} each, {rounds} rounds", hostbuf::Bytes(bytes as u64));
    // The buffers are allocated by the application in any way.
    let mut own: Vec<Vec<u8>> = (0..buffers).map(|index| vec![index as u8; bytes]).collect();

    let mut registering = Duration::ZERO;
    let each_time = timed(&mut sender, &mut own, rounds, |sender, index, buffer| {
        let begun = Instant::now();
        let registration = Registration::new(&registrar, Span::of(buffer)?, Access::READ)?;
        registering += begun.elapsed();
        sender.send(index, buffer, registration.handle())?;
        // The buffer stays registered until its bytes were sent.
        sender.finish()?;
        let begun = Instant::now();
        registration.deregister()?;
        registering += begun.elapsed();
        Ok(())
    })?;
    let each_time = Took { all: each_time, registering };

    let budget = Budget::new(2 * buffers).bytes(4 * buffers * bytes.next_multiple_of(4096));
    let cache = RegistrationCache::new(registrar.clone(), budget, MonitorMode::Strict)?;
    let mut leases = Vec::with_capacity(buffers);
    let mut registering = Duration::ZERO;
    let cached = timed(&mut sender, &mut own, rounds, |sender, index, buffer| {
        let begun = Instant::now();
        let lease = cache.get(buffer.as_ptr(), buffer.len(), Access::READ)?;
        registering += begun.elapsed();
        sender.send(index, buffer, lease.handle())?;
        leases.push(lease);
        if index + 1 == buffers {
            sender.finish()?;
            let begun = Instant::now();
            leases.clear();
            registering += begun.elapsed();
        }
        Ok(())
    })?;
    let cached = Took { all: cached, registering };
    let stats = cache.stats();
    drop(leases);
    drop(cache);

    let pinned = PinnedAlloc::new(registrar, Access::READ, budget.bytes.max(32 << 20));
    let mut blocks =
        (0..buffers).map(|_| pinned.allocate(bytes)).collect::<hostbuf::register::Result<Vec<_>>>()?;
    for (block, buffer) in blocks.iter_mut().zip(&own) {
        block.copy_from_slice(buffer);
    }
    let begun = Instant::now();
    for _ in 0..rounds {
        for (index, block) in blocks.iter().enumerate() {
            sender.send(index, block, block.handle())?;
        }
        sender.finish()?;
    }
    let from_the_start = Took { all: begun.elapsed(), registering: Duration::ZERO };
    check(&mut sender, &own)?;

    report(arguments, &each_time, &cached, &from_the_start, stats);
    Ok(())
}

/// Sends each buffer `rounds` times by `send`, with other contents in each round, and checks the
/// received data.
fn timed<S: Sender>(
    sender: &mut S,
    own: &mut [Vec<u8>],
    rounds: usize,
    mut send: impl FnMut(&mut S, usize, &[u8]) -> Outcome<()>,
) -> Outcome<Duration> {
    let mut took = Duration::ZERO;
    for _ in 0..rounds {
        for buffer in own.iter_mut() {
            let middle = buffer.len() / 2;
            buffer[middle] = buffer[middle].wrapping_add(1);
        }
        let begun = Instant::now();
        for (index, buffer) in own.iter().enumerate() {
            send(sender, index, buffer)?;
        }
        took += begun.elapsed();
    }
    check(sender, own)?;
    Ok(took)
}

fn check<S: Sender>(sender: &mut S, own: &[Vec<u8>]) -> Outcome<()> {
    for (index, buffer) in own.iter().enumerate() {
        if sender.arrived(index, buffer.len())? != *buffer {
            return Err(format!("buffer {index} did not arrive as it was sent").into());
        }
    }
    Ok(())
}

/// The total time of all sends of one kind, and the time of their registrations.
struct Took {
    all: Duration,
    registering: Duration,
}

fn report(arguments: &Arguments, each_time: &Took, cached: &Took, from_the_start: &Took, stats: Stats) {
    let sends = arguments.buffers as f64 * arguments.rounds as f64;
    println!("\n{:<28}{:>11}{:>15}{:>9}{:>9}", "", "a send", "of it for", "", "times");
    println!("{:<28}{:>11}{:>15}{:>9}{:>9}", "", "µs", "registration", "GB/s", "as fast");
    for (what, took) in [
        ("registered for each send", each_time),
        ("by way of the cache", cached),
        ("registered from the start", from_the_start),
    ] {
        let seconds = took.all.as_secs_f64();
        println!(
            "{what:<28}{:>11.1}{:>15.2}{:>9.2}{:>9.2}",
            seconds / sends * 1e6,
            took.registering.as_secs_f64() / sends * 1e6,
            sends * arguments.bytes as f64 / seconds / 1e9,
            each_time.all.as_secs_f64() / seconds
        );
    }
    println!();
    println!(
        "cache         {} hits, {} misses, {} evictions, {} ended since memory changed; at most {} registrations of {}",
        stats.hits,
        stats.misses,
        stats.evictions,
        stats.changed,
        stats.peak_registrations,
        hostbuf::Bytes(stats.peak_bytes as u64)
    );
    println!("checked       everything that was sent has arrived as it was");
}
