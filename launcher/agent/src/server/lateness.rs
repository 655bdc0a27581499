//! The check that ranks connect, vote and map within the time limit.

use std::time::Duration;

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::process;

use super::super::orders::Event;
use super::state::{ClientProcess, Server, Stage};

impl Server {
    /// Returns whether the job waits for `peer`, which is a rank, in the current stage.
    fn is_awaited(&self, peer: &ClientProcess) -> bool {
        match self.stage {
            Stage::Gathering => peer.ready.is_none(),
            Stage::Asking(_) => peer.answer.is_none(),
            Stage::Mapping => !peer.mapped,
            Stage::MappingGpu => peer.uses_gpus && !peer.has_mapped_gpu,
            Stage::Waiting | Stage::Running | Stage::Failed => false,
        }
    }

    /// Returns the limit while the job waits for ranks of this host. No limit applies before the
    /// first rank has connected, since the engine may queue the job.
    fn limit(&self) -> Option<Duration> {
        let mut ranks = self.peers.values().filter(|p| p.counted).peekable();
        ranks.peek()?;
        let waits = matches!(self.stage, Stage::Gathering) || ranks.any(|peer| self.is_awaited(peer));
        let limit = self.deadline.limit.filter(|_| waits)?;
        Some(self.isolated().unwrap_or(limit))
    }

    /// Returns the limit of an agent that the other ranks of this host may be unable to reach,
    /// while some of them are missing.
    fn isolated(&self) -> Option<Duration> {
        let misses = matches!(self.stage, Stage::Gathering) && !self.all_have_connected();
        self.deadline.isolated.filter(|_| misses)
    }

    /// Returns the time until the ranks that the job waits for are late.
    pub(super) fn until_late(&self) -> Option<Duration> {
        Some(self.limit()?.saturating_sub(self.deadline.since.elapsed()))
    }

    /// Fails the job when the ranks that it waits for have made no progress within the limit.
    pub(super) fn check_late(&mut self) {
        let Some(limit) = self.limit().filter(|limit| self.deadline.since.elapsed() >= *limit) else {
            return;
        };
        // One report is enough: the job ends now.
        self.deadline.limit = None;
        let host = process::host_name();
        let seconds = limit.as_secs();
        let remedy = "or raise --start-timeout";
        let late = self.ranks().find(|(id, _)| self.is_awaited(&self.peers[id]));
        let message = if let Some((id, hello)) = late {
            let pid = self.peers[id].pid;
            let state = match process::state(pid) {
                Some('T') => " and is stopped (by SIGSTOP or the terminal)",
                Some('t') => " and is stopped by a debugger",
                Some('D') => " and waits in the kernel (uninterruptible sleep, perhaps for a file server)",
                _ => "",
            };
            let done = match self.stage {
                Stage::Mapping => "mapped the buffers",
                Stage::MappingGpu => "mapped the GPU sections",
                _ => "voted",
            };
            format!(
                "rank {} on {host} (process {pid}) has not {done} within {seconds} s{state}: examine the process (gdb -p {pid}), \
                 {remedy}",
                hello.rank
            )
        } else {
            let (connected, size) = (self.seen.0.len(), self.seen.1);
            let advice = match self.isolated() {
                Some(_) => "this agent seems to be in a different network namespace from the engine's, where ranks with namespaces of \
                            their own cannot reach it. Start `hostbuf exec` in the host's network namespace (no `unshare -n`, no \
                            `bwrap --unshare-net`)"
                    .to_owned(),
                None => format!("check whether the engine has started it under `hostbuf exec`, {remedy}"),
            };
            let first = (0..size).find(|rank| !self.seen.0.contains(rank)).unwrap_or(0);
            format!(
                "{connected} of {size} ranks on {host} have connected, and no further rank has connected within {seconds} s (local rank {first} is \
                 missing): {advice}"
            )
        };
        let _ = self.events.send(Event::Lost(JobError::new(ErrorClass::Lost, message).into()));
    }
}
