//! Sends from registered memory between two hosts: puts against perftest's `ib_write_bw`, channels
//! whose buffers stay registered against channels that register and deregister each buffer, and
//! replication against a broadcast of MPI.
//!
//! It runs on one rank of each of two hosts. The first rank sends and measures.

#![allow(unsafe_code, reason = "one-sided operations on buffers are unsafe functions")]

use std::collections::VecDeque;
use std::time::Instant;

use hostbuf::job::{Collective, Mpi};
use hostbuf::{BufferOptions, HostBuffer, Pages, Span};
use hostbuf_rdma::{Channel, ChannelOptions, Fabric, FabricOptions, HostIndex, PeerId, Pending, Tag};

use mpi::traits::Communicator;

use crate::fixture::BenchResult;
use crate::perftest::Perftest;
use crate::sample::{note, sample, timed, turns};

const MIB: usize = 1 << 20;
const SIZES: [(usize, &str); 5] =
    [(64 << 10, "64k"), (256 << 10, "256k"), (MIB, "1m"), (4 * MIB, "4m"), (16 * MIB, "16m")];
/// The depth of perftest.
const DEPTH: usize = 128;

/// Compares puts and messages with perftest. Each of `repeats` turns sends `volume` bytes of each
/// size.
pub(crate) fn compare(repeats: usize, volume: usize) -> BenchResult {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    // A waiting rank must leave the only core to the software device.
    let group = Mpi::gentle(&universe.world());
    if group.size() != 2 {
        return Err("it takes two ranks, on two hosts".into());
    }
    measure(&group, repeats, volume).inspect_err(|error| {
        eprintln!("hostbuf-bench rdma: rank {}: {error}", group.rank());
        // The other rank would wait.
        universe.world().abort(1);
    })
}

fn measure(group: &Mpi, repeats: usize, volume: usize) -> BenchResult {
    let buffer = HostBuffer::allocate(group, BufferOptions::new(16 * MIB as u64).pages(Pages::Small))?;
    for (busy, name) in [(true, "busy"), (false, "events")] {
        let mut how = FabricOptions::default();
        how.busy_poll = busy;
        how.depth = DEPTH as u32;
        // SAFETY: no other code accesses the buffer.
        let fabric = unsafe { Fabric::connect(group, &buffer, how)? };
        for (size, of_size) in SIZES {
            let count = (volume / size).max(5);
            for repeat in 0..=repeats {
                for side in turns(repeat) {
                    let sent = match side {
                        0 => put(group, &fabric, size, count)?,
                        _ => Perftest { size, count, depth: DEPTH }.run(group)?,
                    };
                    // The first turn makes the connection.
                    if repeat > 0 && group.rank() == 0 {
                        let name = format!("rdma-put-{name}-{of_size}");
                        sample(&name, ["ours", "theirs"][side], sent);
                    }
                }
            }
        }
        if !busy {
            small(group, &fabric, repeats)?;
        }
    }
    channels(group, repeats, volume)
}

/// Measures the rate of puts of one region in bytes per second, with as many in-flight operations
/// as perftest has.
fn put(group: &Mpi, fabric: &Fabric, size: usize, count: usize) -> Result<f64, Box<dyn std::error::Error>> {
    group.barrier()?;
    let mut rate = 0.0;
    if fabric.host() == HostIndex(0) {
        let begun = Instant::now();
        let mut under_way: VecDeque<Pending> = VecDeque::with_capacity(DEPTH);
        for _ in 0..count {
            if under_way.len() == DEPTH
                && let Some(first) = under_way.pop_front()
            {
                first.wait()?;
            }
            under_way.push_back(fabric.put(..size, HostIndex(1))?);
        }
        under_way.into_iter().try_for_each(Pending::wait)?;
        rate = (size * count) as f64 / begun.elapsed().as_secs_f64();
    }
    group.barrier()?;
    Ok(rate)
}

/// Measures messages of 8 bytes per second: many in flight, and each awaited.
fn small(group: &Mpi, fabric: &Fabric, repeats: usize) -> BenchResult {
    const COUNT: usize = 1000;
    for repeat in 0..=repeats {
        for side in turns(repeat) {
            group.barrier()?;
            if fabric.host() == HostIndex(0) {
                let (took, result) = timed(|| match side {
                    0 => fabric.put_many((0..COUNT).map(|n| n * 8..n * 8 + 8), HostIndex(1))?.wait(),
                    _ => (0..COUNT).try_for_each(|n| fabric.put(n * 8..n * 8 + 8, HostIndex(1))?.wait()),
                });
                result?;
                if repeat > 0 {
                    sample("rdma-small", ["ours", "theirs"][side], COUNT as f64 / took.as_secs_f64());
                }
            }
            group.barrier()?;
        }
    }
    Ok(())
}

/// Measures the seconds of a message from a buffer that stays registered, and of one that both
/// sides register for the message.
fn channels(group: &Mpi, repeats: usize, volume: usize) -> BenchResult {
    let other = 1 - group.rank();
    let channels = Channel::connect(group, &[(PeerId(other), Tag(0))], ChannelOptions::default())?;
    let channel = &channels[0];
    let mut bytes = vec![1u8; 16 * MIB];
    for (size, of_size) in SIZES {
        let count = (volume / size).max(5);
        for repeat in 0..=repeats {
            for side in turns(repeat) {
                let span = Span::new(bytes.as_ptr() as usize, size)?;
                let mut messages = |count: usize| -> BenchResult {
                    for _ in 0..count {
                        match group.rank() {
                            0 => channel.send(&bytes[..size])?,
                            _ => {
                                channel.receive(&mut bytes[..size])?;
                            }
                        }
                        if side == 1 {
                            // The buffer is no longer leased, so this call deregisters it.
                            channel.invalidate(span)?;
                        }
                    }
                    Ok(())
                };
                // One message before the measurement completes the operations of the previous turn.
                messages(1)?;
                group.barrier()?;
                let (took, result) = timed(|| messages(count));
                result?;
                if repeat > 0 && group.rank() == 0 {
                    let name = format!("rdma-channel-{of_size}");
                    sample(&name, ["ours", "theirs"][side], took.as_secs_f64() / count as f64);
                }
            }
        }
    }
    if group.rank() == 0 {
        let stats = channel.registrations();
        let text = format!("{} registrations, {} found again", stats.misses, stats.hits);
        note("rdma-channel-64k", &text);
    }
    Ok(group.barrier()?)
}
