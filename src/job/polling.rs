//! Waits for an operation that makes progress only while it is tested.

use std::time::Duration;

/// The first sleep.
const FIRST: Duration = Duration::from_micros(20);
/// The longest sleep.
const LONGEST: Duration = Duration::from_millis(2);

/// Calls `is_done` until it returns true, and sleeps in between, from 20 µs to 2 ms: for a process
/// that must leave the cores to other processes.
///
/// # Errors
/// Those of `is_done`.
pub fn poll_with_sleeps<E>(mut is_done: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    let mut pause = FIRST;
    while !is_done()? {
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(LONGEST);
    }
    Ok(())
}
