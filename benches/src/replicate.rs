//! Replication of a filled buffer to the other hosts, against `MPI_Bcast` of the same bytes between
//! the same processes.

#![allow(
    unsafe_code,
    reason = "the buffer is written by raw pointers, and MPI's broadcast is a foreign function"
)]

use std::alloc::Layout;

use hostbuf::job::Mpi;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use mpi::ffi;
use mpi::traits::{AsRaw, Communicator, CommunicatorCollectives};

use crate::fixture::BenchResult;
use crate::sample::{note, time, timed, turns};

/// Compares the replication of row `key`, with one rank on every host. The row of RDMA uses puts,
/// the others MPI.
pub(crate) fn compare(key: &str, bytes: usize, repeats: usize, page: &str) -> BenchResult {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let world = universe.world();
    // If the device is software, a waiting rank must leave the core to it.
    let by_puts = key == "rdma-replicate";
    let group = if by_puts { Mpi::gentle(&world) } else { Mpi::new(&world) };
    let pages: Pages = page.parse()?;
    let first = world.rank() == 0;
    for repeat in 0..=repeats {
        // The receivers' buffers must be empty, so each turn allocates new ones outside of the
        // measured time.
        let buffer = HostBuffer::allocate(&group, BufferOptions::new(bytes as u64).pages(pages))?;
        if first {
            fill(&buffer, bytes)?;
        }
        #[cfg(feature = "rdma")]
        let _fabric = match by_puts {
            // SAFETY: the buffer is accessed only through pointers, before and after.
            true => Some(unsafe { hostbuf_rdma::Fabric::connect(&group, &buffer, Default::default())? }),
            false => None,
        };
        for side in turns(repeat) {
            world.barrier();
            let (elapsed, name) = if side == 0 {
                let (elapsed, result) = timed(|| buffer.replicate(&group, 0));
                result?;
                check(&buffer)?;
                (elapsed, "ours")
            } else {
                let (elapsed, ()) = timed(|| {
                    broadcast(&world, buffer.as_ptr().as_ptr(), bytes);
                    world.barrier();
                });
                (elapsed, "theirs")
            };
            if first && repeat > 0 {
                time(key, name, elapsed);
            }
        }
    }
    if first {
        let hosts = world.size() - 1;
        note(key, &format!("{} MiB to {hosts} other hosts", bytes >> 20));
    }
    Ok(())
}

fn value(index: usize) -> u64 {
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(buffer: &HostBuffer, bytes: usize) -> hostbuf::Result<()> {
    buffer.initialize(|arena| {
        let root = arena.place(0u64)?;
        arena.take(Layout::from_size_align(bytes - 8, 8).expect("a multiple of 8"))?;
        let words = root.as_ptr().as_ptr();
        for index in 0..bytes / 8 {
            // SAFETY: the arena gave out all bytes, and this is its only user.
            unsafe { words.add(index).write(value(index)) };
        }
        Ok(root)
    })?;
    Ok(())
}

/// Checks one word in each page against the value that was sent.
fn check(buffer: &HostBuffer) -> BenchResult {
    let words = buffer.as_ptr().as_ptr().cast::<u64>();
    for index in (0..buffer.len() / 8).step_by(512) {
        // SAFETY: inside the buffer, to which no process writes now.
        if unsafe { words.add(index).read_volatile() } != value(index) {
            return Err(format!("word {index} differs").into());
        }
    }
    Ok(())
}

fn broadcast(world: &impl AsRaw<Raw = ffi::MPI_Comm>, at: *mut u8, bytes: usize) {
    // SAFETY: the bytes are mapped, and no other code uses them; MPI counts in 32 bits, so 1 GiB at
    // most.
    unsafe { ffi::MPI_Bcast(at.cast(), bytes as i32, ffi::RSMPI_UINT8_T, 0, world.as_raw()) };
}
