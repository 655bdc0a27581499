//! Allocation and population: [`HostBuffer::allocate`] against `MPI_Win_allocate_shared`, whose
//! ranks all touch their parts at the same time.
//!
//! Each side makes two calls in a turn, of which the second counts. Pages that the other side has
//! freed are fragmented, and in a virtual machine huge ones may have been returned to the host, so
//! that the first call pays for the other side.

use hostbuf::job::Mpi;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use mpi::traits::{Communicator, CommunicatorCollectives};

use crate::fixture::BenchResult;
use crate::sample::{note, time, timed, turns};
use crate::window::MpiWindow;

/// Measures an allocation. Every rank of one host calls it.
pub(crate) fn compare(bytes: usize, repeats: usize, page: &str) -> BenchResult {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let world = universe.world();
    let group = Mpi::new(&world);
    let pages: Pages = page.parse()?;
    let key = format!("allocate-{page}");
    let first = world.rank() == 0;
    for repeat in 0..repeats {
        for (side, counts) in turns(repeat).into_iter().flat_map(|side| [(side, false), (side, true)]) {
            world.barrier();
            let (elapsed, name) = if side == 0 {
                let options = BufferOptions::new(bytes as u64).pages(pages);
                let (elapsed, buffer) = timed(|| -> hostbuf::Result<HostBuffer> {
                    let buffer = HostBuffer::allocate(&group, options)?;
                    world.barrier();
                    Ok(buffer)
                });
                let buffer = buffer?;
                if first && counts && repeat == repeats / 2 {
                    let huge = buffer.huge_bytes() as f64 / bytes as f64 * 100.0;
                    let phases = buffer.phases().into_iter().filter(|(_, took)| !took.is_zero());
                    let phases: Vec<String> =
                        phases.map(|(phase, took)| format!("{} {took:.1?}", phase.name())).collect();
                    note(
                        &key,
                        &format!("{huge:.1} % on huge pages; phases of one call: {}", phases.join(", ")),
                    );
                }
                (elapsed, "ours")
            } else {
                let (elapsed, window) = timed(|| {
                    let window = MpiWindow::allocate(&world, bytes);
                    window.touch();
                    world.barrier();
                    window
                });
                window.free();
                (elapsed, "theirs")
            };
            if first && counts {
                time(&key, name, elapsed);
            }
        }
    }
    Ok(())
}
