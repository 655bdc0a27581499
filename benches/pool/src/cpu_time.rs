//! The processor time of threads and processes.

use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Returns the processor time that this thread has used.
#[must_use]
pub fn of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Returns the processor time that a process has used, zero if it has ended.
#[must_use]
pub fn of_process(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32));
    clock.and_then(clock_gettime).map_or(Duration::ZERO, Duration::from)
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
