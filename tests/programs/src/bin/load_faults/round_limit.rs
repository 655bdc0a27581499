//! The time limit of a round.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// The longest time of a round. Each wait of a rank for another one has a limit of 20 s.
const LIMIT: Duration = Duration::from_secs(120);

/// A limit for the time of a round. It ends the process if the round does not end: a hang.
pub(crate) struct RoundLimit {
    end: Sender<()>,
    watcher: std::thread::JoinHandle<()>,
}

impl RoundLimit {
    /// Begins a round.
    pub(crate) fn begin(round: String) -> RoundLimit {
        let (end, ended) = mpsc::channel();
        let watcher = std::thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("load_faults: {round} hangs: it has not ended within {LIMIT:?}");
                std::process::exit(1);
            }
        });
        RoundLimit { end, watcher }
    }

    /// Ends the round.
    pub(crate) fn end(self) {
        drop(self.end);
        self.watcher.join().expect("it has no panic");
    }
}
