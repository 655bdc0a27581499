//! The state of processes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Polls `condition` every 5 ms until it holds.
///
/// # Panics
/// With `what` after `limit`.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lists the processes with `mark` in their command line or environment: pid and command line.
///
/// # Panics
/// If /proc is missing.
#[must_use]
pub fn processes_with(mark: &str) -> Vec<(i32, String)> {
    let own = std::process::id() as i32;
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()).filter(|&p| p != own);
    let read = |pid: i32, what: &str| {
        fs::read(Path::new("/proc").join(pid.to_string()).join(what)).unwrap_or_default()
    };
    let found = |pid: i32| {
        let all = [read(pid, "cmdline"), read(pid, "environ")].concat();
        let text = String::from_utf8_lossy(&all).into_owned();
        let line = String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ");
        text.contains(mark).then_some((pid, line))
    };
    pids.filter_map(found).collect()
}
