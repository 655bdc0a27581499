//! Ways to copy the same bytes, measured in turn.

use std::error::Error;
use std::time::Instant;

use crate::transfer_sample::median;

pub(crate) type CopyResult = Result<(), Box<dyn Error>>;

/// A way to copy bytes, which waits for the end.
pub(crate) struct CopyWay<'w> {
    pub(crate) name: &'static str,
    pub(crate) copy: &'w dyn Fn() -> CopyResult,
}

/// Measures the ways in turn. Returns the median time of each in seconds. Each round begins with
/// another way, and the first round does not count.
///
/// # Errors
/// Those of the ways.
pub(crate) fn medians_in_turn(ways: &[CopyWay<'_>], rounds: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut seconds = vec![Vec::new(); ways.len()];
    for round in 0..=rounds {
        for turn in 0..ways.len() {
            let way = (round + turn) % ways.len();
            let begun = Instant::now();
            (ways[way].copy)()?;
            if round > 0 {
                seconds[way].push(begun.elapsed().as_secs_f64());
            }
        }
    }
    Ok(seconds.into_iter().map(median).collect())
}
