//! The process's current monitor, which the first user starts and the last one stops.

use std::sync::{Arc, Mutex, MutexGuard};

use super::process_monitor::ProcessMonitor;
use super::self_test;
use super::userfaultfd::FEATURES;
use crate::poison::IgnorePoison;
use hostbuf_os::forking::hold_around_fork;

/// The monitor and the number of its users.
type CurrentMonitor = Option<(Arc<ProcessMonitor>, usize)>;

static CURRENT: Mutex<CurrentMonitor> = Mutex::new(None);

fn current() -> MutexGuard<'static, CurrentMonitor> {
    hold_around_fork!(CURRENT: CurrentMonitor);
    CURRENT.lock().ignore_poison()
}

/// Returns the running monitor, or starts one that passes its self-test. Each successful call
/// requires a [`release`].
///
/// # Errors
/// The reason why there is no monitor.
pub(super) fn acquire() -> Result<Arc<ProcessMonitor>, String> {
    let mut current = current();
    // A forked child does not have the thread of its parent's monitor.
    if let Some((monitor, users)) = current.as_mut().filter(|(monitor, _)| monitor.is_current()) {
        *users += 1;
        return Ok(monitor.clone());
    }
    let monitor = Arc::new(start_tested(FEATURES)?);
    let parents = current.replace((monitor.clone(), 1));
    // Dropping the parent's monitor would close descriptors and unwatch memory.
    std::mem::forget(parents);
    Ok(monitor)
}

/// Starts a monitor with these features of userfaultfd, and tests that it sees every change.
///
/// # Errors
/// The reason why there is no monitor.
pub(super) fn start_tested(features: u64) -> Result<ProcessMonitor, String> {
    self_test::check_kernel()?;
    let monitor = ProcessMonitor::start(features)?;
    self_test::run(&monitor)?;
    Ok(monitor)
}

/// Keeps the monitor running until the process ends.
///
/// # Errors
/// As [`acquire`].
pub(super) fn keep_running() -> Result<(), String> {
    let monitor = acquire()?;
    if monitor.mark_kept() {
        release(monitor);
    } else {
        // This reference is never released, so the monitor keeps running.
        std::mem::forget(monitor);
    }
    Ok(())
}

/// Releases a reference. The last release stops the monitor before another one can start, since
/// both would watch the same memory.
pub(super) fn release(monitor: Arc<ProcessMonitor>) {
    let mut current = current();
    drop(monitor);
    let last = match current.as_mut() {
        Some((monitor, users)) if monitor.is_current() => {
            *users -= 1;
            *users == 0
        }
        _ => false,
    };
    if last {
        drop(current.take());
    }
}
