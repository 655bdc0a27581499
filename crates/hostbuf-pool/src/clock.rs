//! The clock of publication times.

use nix::time::{ClockId, clock_gettime};

/// Returns the time of CLOCK_MONOTONIC in nanoseconds, which all processes of a host share.
pub(crate) fn monotonic_ns() -> u64 {
    // Every Linux has the clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
