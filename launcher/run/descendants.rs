//! The processes that a rank has started, found when the rank itself has gone.
//!
//! The launcher is a subreaper: a process whose parent has ended becomes its child, whatever session or process group that
//! process has made for itself. So every process that the ranks have started stays below the launcher as long as it lives.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hostbuf::os::process;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};

/// The interval at which [`end`] looks.
const PACE: Duration = Duration::from_millis(10);
/// The time that a process may take to end after SIGKILL. One in a system call of a file server that is gone, or of another user, does not.
const UNKILLABLE: Duration = Duration::from_secs(5);
/// More generations than this are a list that changes while it is read.
const MOST_GENERATIONS: usize = 1024;

/// Makes this process the parent of all orphans below it.
pub(super) fn adopt() {
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "orphans of this job go to another process");
    }
}

/// Waits for adopted children that have ended, until one of `own` is next: whoever started that one waits for it.
pub(super) fn reap(own: &[u32]) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) = waitid(Id::All, flags) {
        if own.contains(&(pid.as_raw() as u32)) {
            return;
        }
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
}

/// Returns the processes below this one, without `except` and the processes below those.
pub(super) fn living(except: &[u32]) -> Vec<i32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in numbers {
        if let Some(parent) = process::parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![std::process::id() as i32];
    while let Some(pid) = next.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        let below = below.into_iter().filter(|&child| !except.contains(&(child as u32)));
        for child in below {
            next.push(child);
            found.push(child);
        }
    }
    // A process that has ended and that its parent has not waited for holds no memory and gets no signal.
    found.retain(|&pid| process::state(pid).is_some_and(|state| state != 'Z' && state != 'X'));
    found
}

/// Sends `signal` to `pids`, which [`living`] has found.
pub(super) fn signal(pids: &[i32], signal: Signal) {
    let own = std::process::id() as i32;
    for &pid in pids {
        // The number may belong to another process by now: the descriptor is opened before the last look.
        let Ok(process) = process::pidfd(pid) else { continue };
        let ancestors = std::iter::successors(Some(pid), |&pid| process::parent(pid).filter(|&p| p > 1));
        if ancestors.take(MOST_GENERATIONS).any(|pid| pid == own) {
            let _ = process::signal(process.as_fd(), signal as i32);
        }
    }
}

/// The time that descendants get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// To end by themselves.
    pub(super) linger: Duration,
    /// To end after SIGTERM, before SIGKILL.
    pub(super) grace: Duration,
}

impl Patience {
    /// SIGKILL at once.
    pub(super) const NONE: Patience = Patience { linger: Duration::ZERO, grace: Duration::ZERO };
}

/// Ends all processes below this one except `except` and the processes below those. `hurry` tells that the user does not
/// want to wait any longer.
pub(super) fn end(except: &[u32], mut patience: Patience, mut hurry: impl FnMut() -> bool) {
    let begun = Instant::now();
    let mut asked = patience.grace.is_zero();
    loop {
        reap(except);
        let left = living(except);
        if left.is_empty() {
            return;
        }
        if hurry() {
            patience.linger = Duration::ZERO;
        }
        let over = begun.elapsed();
        if over > patience.linger + patience.grace + UNKILLABLE {
            let named = left.iter().map(|&pid| format!("{pid} ({})", process::name(pid))).collect::<Vec<_>>();
            complain!(
                "hostbuf run: processes of this job do not end on {}: {}; they may hold its memory until you end them",
                process::host_name(),
                named.join(", ")
            );
            return;
        }
        if over >= patience.linger + patience.grace {
            signal(&left, Signal::SIGKILL);
        } else if !asked && over >= patience.linger {
            asked = true;
            signal(&left, Signal::SIGTERM);
        }
        std::thread::sleep(PACE);
    }
}
