//! How far the taking of memory is, for somebody who waits: a bar on a terminal, lines elsewhere, and nothing for
//! what takes less than a second.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use hostbuf::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const SHORT: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The progress of all hosts as one.
pub(super) struct Progress {
    begun: Instant,
    hosts: BTreeMap<String, (u64, u64)>,
    bar: Option<ProgressBar>,
    said: Option<Instant>,
    quiet: bool,
}

impl Progress {
    pub(super) fn new(quiet: bool) -> Progress {
        Progress { begun: Instant::now(), hosts: BTreeMap::new(), bar: None, said: None, quiet }
    }

    /// One host's news, bytes.
    pub(super) fn tell(&mut self, host: String, done: u64, total: u64) {
        self.hosts.insert(host, (done, total));
        if self.quiet || self.begun.elapsed() < SHORT {
            return;
        }
        let (done, total) = self.hosts.values().fold((0, 0), |sum, h| (sum.0 + h.0, sum.1 + h.1));
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let style =
                    "hostbuf: taking memory [{bar:30}] {binary_bytes} of {binary_total_bytes}, {eta} left";
                let style =
                    ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
                ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
            });
            bar.set_length(total);
            bar.set_position(done);
        } else if self.said.is_none_or(|s| s.elapsed() >= LINE_EVERY) {
            self.said = Some(Instant::now());
            let percent = done * 100 / total.max(1);
            eprintln!("hostbuf: taking memory: {} of {} ({percent} %)", Bytes(done), Bytes(total));
        }
    }

    /// The memory is there, or never will be.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
