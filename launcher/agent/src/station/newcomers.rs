//! New connections, up to the message by which their owners identify themselves.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::FrameSocket;
use hostbuf_os::{process, socket};
use hostbuf_protocol::message::Coverage;
use nix::sys::resource::{Resource, getrlimit};

use super::super::orders::Event;
use super::state::{ClientProcess, Stage, Station};

/// The largest number of connections without identification; beyond it the agent closes one that is
/// not a rank's.
const MAX_STRANGERS: usize = 128;
/// The time after which a silent connection is not a rank's: a rank identifies itself as soon as it
/// is connected.
const SILENCE: Duration = Duration::from_secs(1);
/// The time for which ranks wait for an agent without a free descriptor: other connections may be
/// closed meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

impl Station {
    pub(super) fn accept(&mut self) {
        // A bounded number per turn, so that connected peers are served first.
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
            let Ok(channel) = FrameSocket::from_fd(fd) else { continue };
            let pid = channel.peer().pid;
            let peer = ClientProcess {
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

    /// Fails the job if ranks cannot be accepted: they would wait for ever, and all other ranks for
    /// them.
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
                "the agent on {host} cannot accept all ranks of this host: it is limited to {limit} open files \
                 (`ulimit -n`). Raise the limit, or start fewer ranks there: {error}"
            )
        } else {
            format!("the agent on {host} cannot accept the ranks of this host: {error}")
        };
        let _ = self.events.send(Event::Lost(JobError::new(ErrorClass::Os, message)));
    }

    /// Closes the oldest unidentified connection of the process that has the most of them, or else
    /// one that has been silent for too long, and returns whether there was one. A rank is safe: it
    /// has a single, recent connection.
    fn drop_stranger(&mut self) -> bool {
        let strangers = || self.peers.iter().filter(|(_, p)| p.hello.is_none());
        let mut count: BTreeMap<i32, usize> = BTreeMap::new();
        // The processes of another PID namespace all have the number 0.
        strangers().filter(|(_, p)| p.pid != 0).for_each(|(_, p)| *count.entry(p.pid).or_default() += 1);
        let flooder = count.iter().max_by_key(|(_, n)| **n).filter(|(_, n)| **n > 1).map(|(pid, _)| *pid);
        // Peers are numbered in the order of their connections.
        let oldest = match flooder {
            Some(pid) => strangers().find(|(_, p)| p.pid == pid),
            None => strangers().next().filter(|(_, p)| p.since.elapsed() > SILENCE),
        };
        oldest.map(|(&id, _)| id).is_some_and(|id| self.peers.remove(&id).is_some())
    }
}
