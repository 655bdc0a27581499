//! Samples of transfers, and their medians.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// One measurement of a read or a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferSample {
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
    /// The time of all threads in the program and in the kernel.
    pub(crate) cpu_seconds: f64,
}

impl TransferSample {
    /// Measures `operation`, which reads or writes `bytes` bytes.
    pub(crate) fn of<E>(bytes: u64, operation: impl FnOnce() -> Result<(), E>) -> Result<TransferSample, E> {
        let (before, begun) = (cpu_seconds(), Instant::now());
        operation()?;
        let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_seconds() - before);
        Ok(TransferSample { bytes: bytes as f64, seconds, cpu_seconds })
    }

    /// Returns the rate in GB/s.
    pub(crate) fn rate(&self) -> f64 {
        self.bytes / self.seconds / 1e9
    }

    /// Returns the CPU time in seconds for each GiB.
    pub(crate) fn cpu_per_gib(&self) -> f64 {
        self.cpu_seconds * (1u64 << 30) as f64 / self.bytes
    }
}

/// Returns the CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process has a usage");
    (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6
}

/// Returns the median of numbers.
///
/// # Panics
/// If there is none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the results of a round, in the order of the rows of the table. Round 0 does not count.
pub(crate) fn print_round(round: usize, rounds: usize, results: &[String]) {
    let number = if round == 0 { "warm-up".to_owned() } else { format!("round {round} of {rounds}") };
    println!("{number}, GB/s: {}", results.join(", "));
}
