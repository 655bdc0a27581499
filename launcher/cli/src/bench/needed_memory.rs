//! The memory that a measurement needs.

use hostbuf::Error;
use hostbuf_memory::space;
use hostbuf_staging::{RingError, RingOptions};

use super::bench_error::BenchError;
use super::ring_destination::memory_bytes;

/// The address space of a thread in bytes: its stack and its thread-local variables.
const THREAD_SPACE: u64 = 3 << 20;
/// The memory for everything else in bytes.
const REST: u64 = 8 << 20;

/// Checks that the limits of this process leave room for the memory of a measurement, before any
/// of it is allocated: an allocation beyond a limit would abort the command, and a page beyond that
/// of a cgroup would end it by the OOM killer.
///
/// # Errors
/// [`BenchError::Memory`] with the request, the available bytes, the limit and the remedy;
/// [`BenchError::Ring`] for options that no ring can have.
pub(super) fn check(options: RingOptions, has_gpu: bool) -> Result<(), BenchError> {
    let ring = options.bytes().map_err(RingError::from)? as u64;
    // The memory of a GPU is its own, but its ring is memory of the host.
    let rings = if has_gpu { 2 * ring } else { ring };
    let bytes = memory_bytes() as u64 + rings + REST;
    let threads = options.workers as u64 * THREAD_SPACE * if has_gpu { 2 } else { 1 };
    let checked = space::check_address_space(bytes + threads).and_then(|()| space::check_ordinary(bytes));
    checked.map_err(|error| BenchError::Memory(Error::from(error)))
}
