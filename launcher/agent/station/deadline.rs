//! The time that ranks have to come, to vote and to map.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostbuf::os::process;
use nix::poll::PollTimeout;

use super::super::orders::Event;
use super::{Peer, Stage, Station};

/// The time since a rank of this host made progress, and its limit.
pub(super) struct Deadline {
    limit: Option<Duration>,
    since: Instant,
    /// The number of ranks that have come.
    pub(super) come: Arc<AtomicU64>,
}

impl Deadline {
    pub(super) fn new(limit: Option<Duration>) -> Deadline {
        Deadline { limit, since: Instant::now(), come: Arc::default() }
    }

    /// Begins to count anew.
    pub(super) fn progress(&mut self) {
        self.since = Instant::now();
    }

    /// Counts a rank, and begins to count the time anew.
    pub(super) fn rank_has_come(&mut self) {
        self.come.fetch_add(1, Ordering::Relaxed);
        self.progress();
    }
}

impl Station {
    /// Returns whether `peer`, a rank, has yet to do what the job waits for.
    fn owes(&self, peer: &Peer) -> bool {
        match self.stage {
            Stage::Gathering => peer.ready.is_none(),
            Stage::Asking(_) => peer.answer.is_none(),
            Stage::Mapping => !peer.mapped,
            Stage::Waiting | Stage::Running | Stage::Failed => false,
        }
    }

    /// The limit, while the job waits for ranks of this host. Before the first one has come an engine may be waiting for
    /// its turn, which has no limit.
    fn limit(&self) -> Option<Duration> {
        let mut ranks = self.peers.values().filter(|p| p.counted).peekable();
        ranks.peek()?;
        let waits = matches!(self.stage, Stage::Gathering) || ranks.any(|peer| self.owes(peer));
        self.deadline.limit.filter(|_| waits)
    }

    /// Returns the time for which poll may sleep.
    pub(super) fn until_late(&self) -> PollTimeout {
        let Some(limit) = self.limit() else { return PollTimeout::NONE };
        let left = limit.saturating_sub(self.deadline.since.elapsed()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    /// Fails the job when the ranks that it waits for have made no progress within the limit.
    pub(super) fn look_if_late(&mut self) {
        let Some(limit) = self.limit().filter(|limit| self.deadline.since.elapsed() >= *limit) else {
            return;
        };
        // Once is enough: what follows is the job's end.
        self.deadline.limit = None;
        let host = process::host_name();
        let seconds = limit.as_secs();
        let remedy = "look what it does, or give it longer by --start-timeout";
        let late = self.ranks().find(|(id, _)| self.owes(&self.peers[id]));
        let message = if let Some((id, hello)) = late {
            let pid = self.peers[id].pid;
            let state = match process::state(pid) {
                Some('T') => ", and is stopped (SIGSTOP or a terminal)",
                Some('t') => ", and is stopped by a debugger",
                Some('D') => ", and waits in the kernel, perhaps for a file server",
                _ => "",
            };
            let done = if matches!(self.stage, Stage::Mapping) { "mapped the buffers" } else { "voted" };
            format!(
                "rank {} on {host} (process {pid}) has not {done} within {seconds} s{state}: {remedy}",
                hello.rank
            )
        } else {
            let (come, size) = (self.seen.0.len(), self.seen.1);
            let first = (0..size).find(|rank| !self.seen.0.contains(rank)).unwrap_or(0);
            format!(
                "{come} of {size} ranks on {host} have come, and no other within {seconds} s (local rank {first} has not): \
                 {remedy}"
            )
        };
        let _ = self.events.send(Event::Lost(message));
    }
}
