//! A process that must end by itself with transfers in flight.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The line that the process prints once transfers are in flight.
pub const IN_FLIGHT: &str = "in flight";

/// The time limit of a process.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a process that prints [`IN_FLIGHT`] and no error, and ends with status 0. One that hangs is
/// killed.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn assert_ends_well(command: &mut Command) {
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let begun = Instant::now();
    let mut has_ended = false;
    while !has_ended && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
        has_ended = process.try_wait().expect("a child").is_some();
    }
    if !has_ended {
        process.kill().expect("it has not been waited for");
    }
    let output = process.wait_with_output().expect("a child");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(has_ended, "{command:?} does not end: {text}");
    assert!(output.status.success() && text.is_empty(), "{command:?}: {}: {text}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.lines().any(|line| line.ends_with(IN_FLIGHT)), "{command:?}: {printed}");
}
