//! The interval between progress reports.

use std::time::{Duration, Instant};

/// The interval between progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The time of the last report of a kind.
pub(crate) struct ReportInterval(Instant);

impl Default for ReportInterval {
    /// Begins the first interval.
    fn default() -> ReportInterval {
        ReportInterval(Instant::now())
    }
}

impl ReportInterval {
    /// Returns whether an interval is over, and begins the next one then.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.0.elapsed() >= REPORT_INTERVAL;
        if is_due {
            self.0 = Instant::now();
        }
        is_due
    }
}
