//! The process's current monitor, which the first user starts and the last one stops.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use hostbuf_os::poison::IgnorePoison;

use super::process_monitor::ProcessMonitor;
use super::self_test;
use super::userfaultfd::FEATURES;
use crate::error::Error;
use crate::own_ranges;
use hostbuf_os::copies::CopyName;
use hostbuf_os::copies::claims::{self, ClaimRefusal, ProcessClaim};
use hostbuf_os::forking::hold_around_fork;

/// The running monitor of this copy of the library.
struct CurrentMonitor {
    monitor: Arc<ProcessMonitor>,
    /// The number of its users.
    users: usize,
    /// The claim that keeps other copies from starting a monitor. It is dropped after the monitor.
    _claim: ProcessClaim,
}

static CURRENT: Mutex<Option<CurrentMonitor>> = Mutex::new(None);

fn current() -> MutexGuard<'static, Option<CurrentMonitor>> {
    hold_around_fork!(CURRENT: Option<CurrentMonitor>);
    CURRENT.lock().ignore_poison()
}

/// The reason why a copy of the library has no monitor.
#[derive(Debug)]
pub(super) enum NoMonitor {
    /// Another copy in this process has it, or cannot be asked.
    OtherCopy { path: String, version: String, why: String },
    /// The process can have none.
    Unavailable(String),
}

impl fmt::Display for NoMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMonitor::Unavailable(why) => f.write_str(why),
            NoMonitor::OtherCopy { path, version, why } => {
                let (path, version, why) = (path.clone(), version.clone(), why.clone());
                Error::OtherCopy { path, version, why }.fmt(f)
            }
        }
    }
}

impl NoMonitor {
    /// Makes the error of a request for `what`, which requires the monitor.
    pub(super) fn into_error(self, what: &str) -> Error {
        match self {
            NoMonitor::Unavailable(why) => Error::Unsupported { what: what.into(), why },
            NoMonitor::OtherCopy { path, version, why } => Error::OtherCopy { path, version, why },
        }
    }
}

/// Claims the monitor of the process for this copy of the library, which has joined the others: one
/// userfaultfd watches a mapping, so a second monitor could not watch what the first one watches.
fn claim() -> Result<ProcessClaim, NoMonitor> {
    claims::claim(claims::MONITOR).map_err(|refusal| match refusal {
        ClaimRefusal::Held(holder) => {
            let CopyName { path, version, .. } = holder.copy;
            let why = "has the monitor, and a process can have one: make the strict caches by that copy, or give the monitor up \
                       there by dropping its strict caches";
            NoMonitor::OtherCopy { path, version, why: why.into() }
        }
        refusal => NoMonitor::Unavailable(format!("claiming the monitor for this copy of hostbuf: {refusal}")),
    })
}

/// Returns the running monitor, or starts one that passes its self-test. Each successful call
/// requires a [`release`].
///
/// # Errors
/// The reason why there is no monitor.
pub(super) fn acquire() -> Result<Arc<ProcessMonitor>, NoMonitor> {
    // Before the lock, since joining the other copies waits for the dynamic loader.
    own_ranges::check_all().map_err(|error| match error {
        Error::OtherCopy { path, version, why } => NoMonitor::OtherCopy { path, version, why },
        other => NoMonitor::Unavailable(other.to_string()),
    })?;
    let mut current = current();
    // A forked child does not have the thread of its parent's monitor.
    if let Some(running) = current.as_mut().filter(|running| running.monitor.is_current()) {
        running.users += 1;
        return Ok(running.monitor.clone());
    }
    let claim = claim()?;
    let monitor = Arc::new(start_tested(FEATURES).map_err(NoMonitor::Unavailable)?);
    let parents = current.replace(CurrentMonitor { monitor: monitor.clone(), users: 1, _claim: claim });
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
pub(super) fn keep_running() -> Result<(), NoMonitor> {
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
        Some(running) if running.monitor.is_current() => {
            running.users -= 1;
            running.users == 0
        }
        _ => false,
    };
    if last {
        drop(current.take());
    }
}
