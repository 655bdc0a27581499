//! Connections that come, until their owners have said who they are.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hostbuf::internal::Channel;
use hostbuf::internal::wire::Coverage;
use hostbuf::os::{process, socket};
use nix::sys::resource::{Resource, getrlimit};

use super::super::orders::Event;
use super::{Peer, Stage, Station};

/// The most connections whose owner has not yet said who it is; beyond it one is closed that is not a rank's.
const MAX_STRANGERS: usize = 128;
/// A rank says who it is as soon as it is connected: who has been silent for longer than this is none.
const SILENCE: Duration = Duration::from_secs(1);
/// The time for which an agent without a free descriptor lets ranks wait for one: others may give theirs back.
const PATIENCE: Duration = Duration::from_secs(5);

impl Station {
    pub(super) fn accept(&mut self) {
        // A bounded number a turn: those who are here already come first.
        for _ in 0..64 {
            let fd = match socket::accept(self.listener.as_fd()) {
                Ok(Some(fd)) => fd,
                Ok(None) => return,
                Err(error) => {
                    // Out of descriptors: make room, and try again in the next turn.
                    tracing::warn!(%error, "accepting a connection");
                    self.full = !self.drop_stranger();
                    if self.full {
                        self.no_room(&error);
                    }
                    return;
                }
            };
            self.locked_out = None;
            // Another user gets nothing, not even a reason.
            let Ok(channel) = Channel::of(fd) else { continue };
            let pid = channel.peer().pid;
            let peer = Peer {
                channel: Some(channel),
                process: None,
                pid,
                since: Instant::now(),
                hello: None,
                command: String::new(),
                coverage: (Coverage::Preloaded, String::new()),
                ready: None,
                answer: None,
                mapped: false,
                outbox: VecDeque::new(),
                served: false,
                refused: false,
                counted: false,
            };
            self.peers.insert(self.next, peer);
            self.next += 1;
            if self.peers.values().filter(|p| p.hello.is_none()).count() > MAX_STRANGERS {
                self.drop_stranger();
            }
        }
    }

    /// Ranks that nobody can let in would wait for ever, and all others for them.
    fn no_room(&mut self, error: &io::Error) {
        let since = *self.locked_out.get_or_insert_with(Instant::now);
        if !matches!(self.stage, Stage::Gathering) || since.elapsed() < PATIENCE {
            return;
        }
        self.locked_out = None;
        let host = process::host_name();
        let message = if error.raw_os_error() == Some(nix::libc::EMFILE) {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
            format!(
                "the agent on {host} may have {limit} files open (`ulimit -n`), which is not enough for the ranks of this host: raise \
                 it, or start fewer: {error}"
            )
        } else {
            format!("the agent on {host} cannot let in the ranks of this host: {error}")
        };
        let _ = self.events.send(Event::Lost(message));
    }

    /// Closes the oldest connection of the stranger who has most of them, or who has been silent for too long. Whether there was one:
    /// a rank that is about to introduce itself has one connection, and has just come.
    fn drop_stranger(&mut self) -> bool {
        let strangers = || self.peers.iter().filter(|(_, p)| p.hello.is_none());
        let mut count: BTreeMap<i32, usize> = BTreeMap::new();
        // Those of another PID namespace all have the number 0.
        strangers().filter(|(_, p)| p.pid != 0).for_each(|(_, p)| *count.entry(p.pid).or_default() += 1);
        let flooder = count.iter().max_by_key(|(_, n)| **n).filter(|(_, n)| **n > 1).map(|(pid, _)| *pid);
        // Their numbers are in the order in which they came.
        let oldest = match flooder {
            Some(pid) => strangers().find(|(_, p)| p.pid == pid),
            None => strangers().next().filter(|(_, p)| p.since.elapsed() > SILENCE),
        };
        oldest.map(|(&id, _)| id).is_some_and(|id| self.peers.remove(&id).is_some())
    }
}
