//! Ends the processes of a job whose launcher has been killed.

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hostbuf_os::process;
use hostbuf_protocol::environment::ENV_JOB;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::super::spec::Spec;

/// The time that processes get to end after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// The interval at which the agent looks for remaining processes.
const SCAN_INTERVAL: Duration = Duration::from_millis(20);

/// A job whose ranks this host's launcher has started itself, so that no engine ends them after the
/// launcher.
pub(super) struct LocalJob {
    launcher: Pid,
    /// The job's entry in the environment of its processes.
    variable: Vec<u8>,
    /// The beginning of the names of the job's memory files in /proc/PID/maps.
    memory: String,
}

impl LocalJob {
    /// Returns the job of `spec` if its agent has to end the processes.
    pub(super) fn of(spec: &Spec) -> Option<LocalJob> {
        spec.ends_processes.then(|| LocalJob {
            launcher: nix::unistd::getppid(),
            variable: format!("{ENV_JOB}={}", spec.socket).into_bytes(),
            memory: format!("/memfd:hostbuf:{:032x}:", spec.job),
        })
    }

    /// Returns whether process `pid` maps one of the job's buffers or has the job's variable in its
    /// environment.
    fn has(&self, pid: i32) -> bool {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == self.variable)
            || fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(&self.memory))
    }

    fn processes(&self) -> Vec<i32> {
        let own = std::process::id() as i32;
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        // The agent's own children, which take pages, map the buffers too. They end with the agent.
        let is_own = |pid: i32| pid == own || process::parent(pid) == Some(own);
        numbers.filter(|&pid| !is_own(pid) && self.has(pid)).collect()
    }

    fn signal(&self, pid: i32, signal: Signal) {
        let Ok(process) = process::pidfd(pid) else { return };
        // The kernel may have reused the process number since, so the process behind the pidfd is
        // checked again.
        if self.has(pid) {
            let _ = process::signal(process.as_fd(), signal as i32);
        }
    }

    /// Ends the processes of the job if its launcher has ended: SIGTERM, then SIGKILL. The
    /// processes `signalled` have got SIGTERM from the kernel when the launcher ended: a second one
    /// could interrupt their cleanup.
    pub(super) fn end_orphans(&self, mut signalled: HashSet<i32>) {
        // A changed parent means that the launcher has ended: the kernel reparents its children
        // before it signals them.
        if nix::unistd::getppid() == self.launcher {
            return;
        }
        let begun = Instant::now();
        while begun.elapsed() < 2 * GRACE {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in left {
                if begun.elapsed() >= GRACE {
                    self.signal(pid, Signal::SIGKILL);
                } else if signalled.insert(pid) {
                    self.signal(pid, Signal::SIGTERM);
                }
            }
            std::thread::sleep(SCAN_INTERVAL);
        }
    }
}
