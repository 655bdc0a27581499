//! Clocks: of a thread, and of a host.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

/// Runs an operation. Also returns its duration, and the part of it in which the thread has slept
/// in the kernel, which a read does while it waits for a disk.
pub(crate) fn time<T>(operation: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let (begun, before) = (Instant::now(), thread_usage());
    let result = operation();
    let (duration, after) = (begun.elapsed(), thread_usage());
    // A thread that has only been preempted by others has not slept.
    let has_slept = after.sleeps != before.sleeps;
    let ran = after.ran.saturating_sub(before.ran);
    (result, duration, if has_slept { duration.saturating_sub(ran) } else { Duration::ZERO })
}

/// The use of cores by a thread.
#[derive(Default)]
struct ThreadUsage {
    /// The time for which the thread has run.
    ran: Duration,
    /// The number of times that it has given up its core by itself.
    sleeps: i64,
}

/// Returns the use of cores by this thread. A kernel without these numbers makes all threads look
/// as if they never slept.
fn thread_usage() -> ThreadUsage {
    let ran = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let sleeps = getrusage(UsageWho::RUSAGE_THREAD).map(|usage| usage.voluntary_context_switches());
    match (ran, sleeps) {
        (Ok(ran), Ok(sleeps)) => ThreadUsage { ran, sleeps },
        _ => ThreadUsage::default(),
    }
}

/// Returns the time since the host was booted, the same for all of its processes.
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_sleeps_waits() {
        let pause = Duration::from_millis(30);
        let ((), duration, waited) = time(|| std::thread::sleep(pause));
        assert!(duration >= pause && waited <= duration && waited >= pause / 2, "{waited:?} of {duration:?}");
        let (sum, duration, waited) = time(|| {
            let begun = Instant::now();
            let mut sum = 0u64;
            while begun.elapsed() < pause {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
            sum
        });
        assert!(sum > 0 && duration >= pause && waited.is_zero(), "{waited:?} of {duration:?}");
    }
}
