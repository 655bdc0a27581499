//! Descriptions of processes that a signal has ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use hostbuf_os::process;
use nix::sys::signal::Signal;

/// The first rank that a signal has ended.
pub(super) struct FirstDeath {
    pub(super) rank: usize,
    pub(super) pid: u32,
    pub(super) status: ExitStatus,
}

impl FirstDeath {
    /// Describes the rank, its host, its process and the signal.
    pub(super) fn text(&self) -> String {
        let FirstDeath { rank, pid, status } = self;
        format!("rank {rank} on {} (process {pid}) was ended by {}", process::host_name(), death(*status))
    }

    /// Returns what the user can do.
    pub(super) fn remedy(&self) -> &'static str {
        match self.status.signal().and_then(|number| Signal::try_from(number).ok()) {
            Some(Signal::SIGKILL) => {
                "find the sender (`dmesg` shows whether the kernel has ended it for lack of memory), and start the job again"
            }
            Some(
                Signal::SIGSEGV
                | Signal::SIGBUS
                | Signal::SIGILL
                | Signal::SIGFPE
                | Signal::SIGABRT
                | Signal::SIGTRAP
                | Signal::SIGSYS,
            ) => "read its own messages, or examine its core file (`ulimit -c unlimited`)",
            _ => "find the sender, and start the job again",
        }
    }
}

/// Describes the signal that has ended a process, and explains SIGSYS, which few users know.
pub(super) fn death(status: ExitStatus) -> String {
    let Some(number) = status.signal() else { return status.to_string() };
    let mut text = process::signal_name(number);
    if status.core_dumped() {
        text += ", core dumped";
    }
    if number == Signal::SIGSYS as i32 {
        text += ", which a seccomp filter sends for a forbidden system call (run `hostbuf doctor` under the same filter to find \
                 the call)";
    }
    text
}
