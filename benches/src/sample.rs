//! The output of the benchmarks: one line for each sample, which [`crate::report`] collects.

use std::time::{Duration, Instant};

/// Prints one sample of `side` (`ours` or `theirs`, or a name of a part) of the row `key`: seconds,
/// bytes, or a plain number, as the row has it.
pub(crate) fn sample(key: &str, side: &str, value: f64) {
    println!("@ {key} {side} {value}");
}

/// Prints a sentence that the table gets as a note below the row.
pub(crate) fn note(key: &str, text: &str) {
    println!("# {key} {text}");
}

/// Prints why a row has no figure in this run: the table says so instead of leaving it out.
pub(crate) fn unmeasured(key: &str, why: &str) {
    println!("! {key} {why}");
}

/// Prints one sample of a time, as [`sample`] does.
pub(crate) fn time(key: &str, side: &str, elapsed: Duration) {
    sample(key, side, elapsed.as_secs_f64());
}

/// Runs `work` and returns its duration and its result.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begun = Instant::now();
    let result = work();
    (begun.elapsed(), result)
}

/// Returns the median, which is the mean of the two middle values if the number is even. Returns
/// NaN if there are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the order in which two sides take their turns. It alternates, so that neither side
/// profits from the state that the other leaves behind.
pub(crate) fn turns(repeat: usize) -> [usize; 2] {
    [repeat % 2, 1 - repeat % 2]
}
