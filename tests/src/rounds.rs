//! Repetitions that end in time on a machine without free cores.

use std::time::{Duration, Instant};

/// Returns the numbers of the rounds of a test that races: `most` rounds, or fewer after `limit`,
/// but at least `least`.
pub fn rounds(least: usize, most: usize, limit: Duration) -> impl Iterator<Item = usize> {
    let begun = Instant::now();
    (0..most).take_while(move |&round| round < least || begun.elapsed() < limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rounds_end_after_the_limit_but_not_before_the_least() {
        assert_eq!(rounds(3, 10, Duration::ZERO).count(), 3);
        assert_eq!(rounds(3, 10, Duration::from_secs(60)).count(), 10);
    }
}
