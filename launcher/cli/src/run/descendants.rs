//! The processes that ranks have started, also after the rank itself has ended.
//!
//! The launcher is a subreaper: a process whose parent has ended becomes the launcher's child,
//! whatever its session or process group. So every process that the ranks have started remains a
//! descendant of the launcher until it ends.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hostbuf_os::process;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};

use crate::process_tree;

/// The interval at which [`end`] looks for remaining processes.
const SCAN_INTERVAL: Duration = Duration::from_millis(10);
/// The time that a process may take to end after SIGKILL. A process of another user does not end,
/// nor one that waits in the kernel for a lost file server.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number of generations followed: a longer chain of parents means that process numbers
/// were reused meanwhile.
const MOST_GENERATIONS: usize = 1024;

/// Makes this process the parent of orphaned descendants.
pub(super) fn adopt() {
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "cannot become a subreaper: orphaned processes of this job are not ended with it");
    }
}

/// Reaps adopted children that have ended. It stops at a child in `own`, since the code that
/// started that child waits for it.
pub(super) fn reap(own: &[u32]) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) = waitid(Id::All, flags) {
        if own.contains(&(pid.as_raw() as u32)) {
            return;
        }
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
}

/// Returns the descendants of this process, without `except` and their descendants.
pub(super) fn living(except: &[u32]) -> Vec<i32> {
    process_tree::below(std::process::id() as i32, except)
}

/// Returns the children of this process. Before the launcher starts any, they are those of a shell
/// that it has replaced (`./monitor & exec hostbuf run ...`), which do not belong to the job.
pub(super) fn children() -> Vec<u32> {
    let own = std::process::id() as i32;
    let all = living(&[]).into_iter().filter(|&pid| process::parent(pid) == Some(own));
    all.map(|pid| pid as u32).collect()
}

/// Sends `signal` to those of `pids`, found by [`living`], that are still descendants of this
/// process.
pub(super) fn signal(pids: &[i32], signal: Signal) {
    let own = std::process::id() as i32;
    for &pid in pids {
        // The kernel may have reused the number since, so the ancestry is checked after the pidfd
        // is opened.
        let Ok(process) = process::pidfd(pid) else { continue };
        let ancestors = std::iter::successors(Some(pid), |&pid| process::parent(pid).filter(|&p| p > 1));
        if ancestors.take(MOST_GENERATIONS).any(|pid| pid == own) {
            let _ = process::signal(process.as_fd(), signal as i32);
        }
    }
}

/// The times that descendants get to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndTimeouts {
    /// The time to end by themselves.
    pub(super) linger: Duration,
    /// The time between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
}

impl EndTimeouts {
    /// The times of an end by SIGKILL at once.
    pub(super) const IMMEDIATE: EndTimeouts = EndTimeouts { linger: Duration::ZERO, grace: Duration::ZERO };
}

/// Ends all descendants of this process except `except` and their descendants. Once `hurry` returns
/// true, they get no more time to end by themselves.
pub(super) fn end(except: &[u32], mut timeouts: EndTimeouts, mut hurry: impl FnMut() -> bool) {
    let begun = Instant::now();
    let mut asked = timeouts.grace.is_zero();
    loop {
        reap(except);
        let left = living(except);
        if left.is_empty() {
            return;
        }
        if hurry() {
            timeouts.linger = Duration::ZERO;
        }
        let over = begun.elapsed();
        if over > timeouts.linger + timeouts.grace + KILL_TIMEOUT {
            let named = left.iter().map(|&pid| format!("{pid} ({})", process::name(pid))).collect::<Vec<_>>();
            hostbuf_agent::complain!(
                "hostbuf run: processes of this job on {} have not ended after SIGKILL: {}; they may hold the job's memory until \
                 you end them",
                process::host_name(),
                named.join(", ")
            );
            return;
        }
        if over >= timeouts.linger + timeouts.grace {
            signal(&left, Signal::SIGKILL);
        } else if !asked && over >= timeouts.linger {
            asked = true;
            signal(&left, Signal::SIGTERM);
        }
        std::thread::sleep(SCAN_INTERVAL);
    }
}
