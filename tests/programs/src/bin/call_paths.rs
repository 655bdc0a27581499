//! The requests whose call paths `scripts/call-paths` traces: a miss and a hit of the registration
//! cache, and a replication by RDMA. `scripts/rdma-vm --hosts 2` runs it on both machines, under
//! gdb on the first. Each traced function is one request; its name is what the script looks for.

#![allow(unsafe_code, reason = "connecting a fabric is an unsafe function")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use hostbuf::job::Collective;
use hostbuf::register::{Access, Budget, MonitorMode, RegistrationCache, Verbs};
use hostbuf::{BufferOptions, HostBuffer, Pages};
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::tcp::Tcp;
use hostbuf_rdma::{Fabric, FabricOptions, HostIndex, Pending};

const SIZE: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(900);

fn main() {
    // The second machine only receives the replication.
    if std::env::var("RDMA_VM_HOST").is_ok_and(|host| host == "0") {
        tell("cache", requests());
    }
    tell("replicate", replication());
}

/// Prints the outcome of a check, and ends the program if it has failed.
fn tell(name: &str, outcome: Outcome) {
    match outcome {
        Ok(seen) => println!("ok {name} {seen}"),
        Err(why) => {
            println!("FAILED {name} {why}");
            std::process::exit(1);
        }
    }
}

fn requests() -> Outcome {
    let device = Arc::new(Verbs::open(None).map_err(text)?);
    let budget = Budget::new(16).bytes(1 << 24);
    let cache = RegistrationCache::new(device, budget, MonitorMode::Strict).map_err(text)?;
    // The first miss of a thread also allocates its counters.
    let (first, memory) = (vec![1u8; 1 << 18], vec![1u8; 1 << 18]);
    request(&cache, &first)?;
    call_path_miss(&cache, &memory)?;
    // The first hit stores the hint. A debugger may delay the monitor until the memory counts as
    // busy, and a registration of busy memory ends with its lease.
    let begun = Instant::now();
    while cache.stats().hits < 2 {
        expect(begun.elapsed() < TIMEOUT, format!("no hits: {:?}", cache.stats()))?;
        request(&cache, &memory)?;
    }
    let before = cache.stats();
    call_path_hit(&cache, &memory)?;
    let after = cache.stats();
    expect(after.hits == before.hits + 1, format!("no hit: {after:?}"))?;
    Ok(format!("{} misses, {} hits", after.misses, after.hits))
}

fn request(cache: &RegistrationCache<Verbs>, memory: &[u8]) -> Result<(), String> {
    cache.get(memory.as_ptr(), memory.len(), Access::READ).map(drop).map_err(text)
}

#[inline(never)]
fn call_path_miss(cache: &RegistrationCache<Verbs>, memory: &[u8]) -> Result<(), String> {
    request(cache, memory)
}

#[inline(never)]
fn call_path_hit(cache: &RegistrationCache<Verbs>, memory: &[u8]) -> Result<(), String> {
    request(cache, memory)
}

fn replication() -> Outcome {
    let world = Tcp::between_machines(0, 1, TIMEOUT).map_err(text)?;
    let buffer = HostBuffer::allocate(&world, BufferOptions::new(SIZE).pages(Pages::Small)).map_err(text)?;
    // SAFETY: the buffer is accessed only through pointers and after each replication.
    let fabric = unsafe { Fabric::connect(&world, &buffer, FabricOptions::default()) }.map_err(text)?;
    if world.rank() == 0 {
        buffer.initialize(|arena| arena.place(7u64)).map_err(text)?;
    }
    world.barrier().map_err(text)?;
    if world.rank() == 0 {
        // The first operation connects the hosts.
        fabric.get(0..8, HostIndex(1)).and_then(Pending::wait).map_err(text)?;
    }
    call_path_replicate(&buffer, &world)?;
    world.barrier().map_err(text)?;
    Ok(format!("to {} hosts", fabric.hosts()))
}

#[inline(never)]
fn call_path_replicate(buffer: &HostBuffer, world: &Tcp) -> Result<(), String> {
    buffer.replicate(world, 0).map_err(text)
}
