//! The check that no agent of this host is stopped while the job starts. The agents apply the time
//! limit of the start to their ranks, which a stopped agent cannot do.

use std::time::{Duration, Instant};

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::process;

use super::state::Launcher;
use super::stopped_process::StoppedProcess;
use crate::process_tree;

/// The interval between two checks.
pub(super) const STOP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Launcher<'_> {
    /// Returns whether a stopped agent would delay the job, and the job has a time limit.
    pub(super) fn watches_agents(&self) -> bool {
        self.start_limit.is_some() && !self.agreed && !self.failure.is_some() && self.agents.is_some()
    }

    /// Returns the error of the job if a process of the agents' job on this host has been stopped
    /// for longer than the time limit of the start.
    pub(super) fn stopped_agent(&mut self) -> Option<JobError> {
        let limit = self.start_limit.filter(|_| self.watches_agents())?;
        if self.checked_at.is_some_and(|at| at.elapsed() < STOP_CHECK_INTERVAL) {
            return None;
        }
        self.checked_at = Some(Instant::now());
        let root = self.agents.as_ref()?.id() as i32;
        let is_stopped = |pid: &i32| matches!(process::state(*pid), Some('T' | 't'));
        let local = self.command.engine.spawns_ranks();
        let below = if local { Vec::new() } else { process_tree::below(root, &[]) };
        let Some(pid) = std::iter::once(root).chain(below).find(is_stopped) else {
            self.stopped_process = None;
            return None;
        };
        let known = self.stopped_process.filter(|known| known.pid == pid);
        let StoppedProcess { since, .. } =
            *self.stopped_process.insert(known.unwrap_or(StoppedProcess { pid, since: Instant::now() }));
        (since.elapsed() >= limit).then(|| self.describe_stopped(pid, limit))
    }

    fn describe_stopped(&self, pid: i32, limit: Duration) -> JobError {
        let host = process::host_name();
        let who = match self.command.engine.spawns_ranks() {
            true => format!("the agent on {host} (process {pid})"),
            false => format!(
                "process {pid} ({}) on {host}, by which {} runs the agents,",
                process::name(pid),
                self.command.release.title()
            ),
        };
        let by = match process::state(pid) {
            Some('t') => "a debugger",
            _ => "SIGSTOP or the terminal",
        };
        let seconds = limit.as_secs();
        let message = format!(
            "{who} was stopped by {by} and has not continued within {seconds} s: find the sender and start the job again, or raise \
             --start-timeout"
        );
        JobError::new(ErrorClass::Attach, message).with_host(host)
    }
}
