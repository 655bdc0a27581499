//! Clocks: of a thread, and of a host.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Runs an operation. Returns also its duration, and the part of it in which the thread did not
/// run on a core: it has waited for a disk, or for a core.
pub(crate) fn time<T>(operation: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let (begun, cpu) = (Instant::now(), cpu_time());
    let result = operation();
    let duration = begun.elapsed();
    let ran = cpu_time().saturating_sub(cpu);
    (result, duration, duration.saturating_sub(ran))
}

/// Returns the time for which this thread has run. A kernel that has no such clock makes all
/// threads look as if they only waited.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Returns the time since the host was booted, the same for all of its processes.
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
