//! The progress of allocating and filling buffers: a bar on a terminal, lines elsewhere, and
//! nothing for work that takes less than a second.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use hostbuf::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time before which no progress is shown.
const SHORT: Duration = Duration::from_secs(1);
/// The interval between lines.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The progress of all hosts as one.
pub(super) struct Progress {
    allocation: WorkProgress,
    loading: WorkProgress,
    /// The work on each buffer, by name.
    filling: BTreeMap<String, WorkProgress>,
    quiet: bool,
}

/// The progress of one kind of work on all its hosts.
struct WorkProgress {
    what: String,
    begun: Instant,
    /// The number of completed bytes and, if known, of all bytes, by host.
    hosts: BTreeMap<String, (u64, Option<u64>)>,
    bar: Option<ProgressBar>,
    said: Option<Instant>,
}

impl Progress {
    pub(super) fn new(quiet: bool) -> Progress {
        Progress {
            allocation: WorkProgress::new("allocating memory".into()),
            loading: WorkProgress::new("loading files".into()),
            filling: BTreeMap::new(),
            quiet,
        }
    }

    /// Updates the number of bytes that a host has allocated.
    pub(super) fn allocation(&mut self, host: String, done: u64, total: u64) {
        if !self.quiet {
            self.allocation.report(host, done, Some(total));
        }
    }

    /// Updates the number of bytes that a host has read of its files.
    pub(super) fn loading(&mut self, host: String, done: u64, total: u64) {
        if !self.quiet {
            self.loading.report(host, done, Some(total));
        }
    }

    /// Updates the number of bytes that a host has filled or received of a buffer.
    pub(super) fn filling(&mut self, buffer: &str, host: String, done: u64, ended: bool) {
        if self.quiet {
            return;
        }
        let fresh = || WorkProgress::new(format!("filling buffer \"{buffer}\""));
        let work = self.filling.entry(buffer.to_owned()).or_insert_with(fresh);
        if !ended {
            return work.report(host, done, None);
        }
        work.hosts.remove(&host);
        if work.hosts.is_empty() {
            work.end();
            self.filling.remove(buffer);
        }
    }

    /// Ends the progress of allocation.
    pub(super) fn allocation_ended(&mut self) {
        self.allocation.end();
    }

    /// Ends the progress of all that precedes the start of the ranks.
    pub(super) fn start_ended(&mut self) {
        self.allocation.end();
        self.loading.end();
    }

    /// Ends all progress.
    pub(super) fn end(&mut self) {
        self.start_ended();
        self.filling.values_mut().for_each(WorkProgress::end);
    }
}

fn hosts(count: usize) -> String {
    if count == 1 { "1 host".into() } else { format!("{count} hosts") }
}

impl WorkProgress {
    fn new(what: String) -> WorkProgress {
        WorkProgress { what, begun: Instant::now(), hosts: BTreeMap::new(), bar: None, said: None }
    }

    fn report(&mut self, host: String, done: u64, total: Option<u64>) {
        self.hosts.insert(host, (done, total));
        if self.begun.elapsed() < SHORT {
            return;
        }
        let done: u64 = self.hosts.values().map(|h| h.0).sum();
        let total: Option<u64> = self.hosts.values().map(|h| h.1).sum();
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let style = match total {
                    Some(_) => "hostbuf: {msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {eta} left",
                    None => "hostbuf: {msg} {spinner} {binary_bytes}",
                };
                let style =
                    ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
                let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
                bar.with_style(style).with_message(self.what.clone())
            });
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(done);
        } else if self.said.is_none_or(|s| s.elapsed() >= LINE_EVERY) {
            self.said = Some(Instant::now());
            match total {
                Some(total) => {
                    let percent = done * 100 / total.max(1);
                    hostbuf_agent::complain!(
                        "hostbuf: {}: {} of {} ({percent} %)",
                        self.what,
                        Bytes(done),
                        Bytes(total)
                    );
                }
                None => {
                    hostbuf_agent::complain!(
                        "hostbuf: {}: {} on {} in all",
                        self.what,
                        Bytes(done),
                        hosts(self.hosts.len())
                    );
                }
            }
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
