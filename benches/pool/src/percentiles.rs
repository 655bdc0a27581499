//! Medians and percentiles of times.

use std::time::Duration;

/// Measured times.
#[derive(Clone, Debug, Default)]
pub struct Timings(Vec<Duration>);

impl Timings {
    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Returns the time that the fraction `part` of all times does not exceed.
    ///
    /// # Panics
    /// If there are no times.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted[((sorted.len() - 1) as f64 * part) as usize]
    }

    /// Returns the median.
    ///
    /// # Panics
    /// If there are no times.
    #[must_use]
    pub fn median(&self) -> Duration {
        self.quantile(0.5)
    }
}
