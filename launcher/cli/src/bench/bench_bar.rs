//! The progress of a measurement: a bar on a terminal, and nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

use super::bench_row::BenchRow;

/// A bar that counts the reads of the files.
pub(super) struct BenchBar(ProgressBar);

impl BenchBar {
    /// Shows a bar on standard error, if that is a terminal.
    pub(super) fn new(reads: usize, quiet: bool) -> BenchBar {
        let text = "hostbuf: reading [{bar:30}] {pos} of {len}: {msg}, {eta} left";
        let style = ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(reads as u64) };
        BenchBar(bar.with_style(style))
    }

    /// Names the row that is measured next.
    pub(super) fn begin(&self, row: &BenchRow) {
        self.0.set_message(format!("{} to {}, {} page cache", row.backend, row.to, row.cache));
    }

    /// Counts a read that has ended.
    pub(super) fn count(&self) {
        self.0.inc(1);
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
