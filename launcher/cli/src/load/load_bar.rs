//! The progress of a load: a bar on a terminal, and nothing elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use hostbuf_load::LoadCounters;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time before which no progress is shown.
const SHORT: Duration = Duration::from_millis(300);

/// A bar with the rate and what bounds it.
pub(super) struct LoadBar {
    begun: Instant,
    is_shown: bool,
    bar: Option<ProgressBar>,
}

impl LoadBar {
    pub(super) fn new(quiet: bool) -> LoadBar {
        LoadBar { begun: Instant::now(), is_shown: !quiet && std::io::stderr().is_terminal(), bar: None }
    }

    /// Shows the counters of a load of which `bytes` have arrived.
    pub(super) fn report(&mut self, counters: &LoadCounters, bytes: u64) {
        if !self.is_shown || self.begun.elapsed() < SHORT {
            return;
        }
        let message = message(counters, bytes);
        let bar = self.bar.get_or_insert_with(|| {
            let text = "hostbuf: loading [{bar:30}] {binary_bytes} of {binary_total_bytes}, {msg}";
            let style = ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar());
            let target = ProgressDrawTarget::stderr();
            let bar = ProgressBar::with_draw_target(Some(counters.file_bytes), target).with_style(style);
            bar.with_message(message.clone())
        });
        // The gaps between files may be counted too.
        bar.set_position(bytes.min(counters.file_bytes));
        bar.set_message(message);
    }

    /// Removes the bar.
    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Describes the rate so far, what bounds it, and the time that the rest takes at this rate.
fn message(counters: &LoadCounters, bytes: u64) -> String {
    let rate = bytes as f64 / counters.duration().as_secs_f64();
    let mut text = format!("{:.2} GB/s", rate / 1e9);
    if let Some(bound) = counters.bound() {
        text += &format!(", bound by the {bound}");
    }
    let left = counters.file_bytes.saturating_sub(bytes) as f64 / rate;
    if let Ok(left) = Duration::try_from_secs_f64(left) {
        text += &format!(", {:#} left", HumanDuration(left));
    }
    text
}
