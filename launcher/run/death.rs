//! Processes that a signal has ended, in words.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use hostbuf::os::process;
use nix::sys::signal::Signal;

/// The rank that a signal has ended first.
pub(super) struct FirstDeath {
    pub(super) rank: usize,
    pub(super) pid: u32,
    pub(super) status: ExitStatus,
}

impl FirstDeath {
    /// For messages.
    pub(super) fn text(&self) -> String {
        let FirstDeath { rank, pid, status } = self;
        format!("rank {rank} on {} (process {pid}) was ended by {}", process::host_name(), death(*status))
    }
}

/// Names the signal that has ended a process, and what a signal of the kernel's own means where users do not know it.
pub(super) fn death(status: ExitStatus) -> String {
    let Some(number) = status.signal() else { return status.to_string() };
    let name = Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |s| s.to_string());
    let mut text = format!("signal {number} ({name})");
    if status.core_dumped() {
        text += ", core dumped";
    }
    if number == Signal::SIGSYS as i32 {
        text += ", by which a seccomp filter ends a process that makes a forbidden system call (`hostbuf doctor`, run under the \
                 same filter, says which)";
    }
    text
}
