//! The messages of the peers, and the end of their connections and processes.

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::{Packet, Received};
use hostbuf_protocol::failure::ErrorRecord;
use hostbuf_protocol::message::{Hello, Message, RefusedCandidate, Role};

use super::super::orders::Question;
use super::outbox::MAX_BACKLOG;
use super::state::{RankAnswer, Stage, Station};

impl Station {
    /// Reads and handles at most `most` messages of a peer.
    pub(super) fn read(&mut self, id: u64, most: usize) {
        for _ in 0..most {
            let Some(channel) = self.peers.get(&id).and_then(|p| p.channel.as_ref()) else { return };
            match channel.receive() {
                Ok(Received::Packet(packet)) => self.hear(id, &packet),
                Ok(Received::Nothing) => return,
                Ok(_) | Err(_) => return self.hung_up(id),
            }
        }
    }

    fn hear(&mut self, id: u64, packet: &Packet) {
        let message = match packet.message() {
            Ok(message) => message,
            Err(error) => {
                let pid = self.peers.get(&id).map(|p| p.pid);
                tracing::warn!(pid, ?error, "a peer sent an invalid message");
                return self.hung_up(id);
            }
        };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let hello = peer.hello;
        match (message, hello.role) {
            (Message::Ready { territory, coverage, reason }, Role::Rank) => {
                self.deadline.progress();
                peer.ready = Some(territory);
                peer.coverage = (coverage, String::from_utf8_lossy(reason).into_owned());
                self.look_if_present();
            }
            (Message::Votes { mask, refusal }, Role::Rank) => {
                if let Stage::Asking(Question::Ballot(_, length)) = self.stage {
                    let refusal = refusal.map(|refused| describe(&refused, length));
                    peer.answer = Some(RankAnswer::Votes(mask, refusal));
                    self.deadline.progress();
                    self.look_if_answered();
                }
            }
            (Message::Hole { address }, Role::Rank) => {
                if let Stage::Asking(Question::Search { .. }) = self.stage {
                    peer.answer = Some(RankAnswer::Hole(address));
                    self.deadline.progress();
                    self.look_if_answered();
                }
            }
            (Message::Mapped, role) if peer.served => {
                peer.mapped = true;
                self.deadline.progress();
                if role == Role::Rank {
                    self.look_if_mapped();
                }
            }
            (Message::Failed { error }, role) => {
                if role == Role::Rank && peer.counted {
                    self.lost_with(id, JobError::from(&error));
                }
            }
            (Message::Gather { sequence, group, size, part }, Role::Member) => {
                self.gather(id, hello, (group, sequence), size, part.to_vec());
            }
            (Message::Left { .. }, Role::Member) => self.member_left(id, hello, false),
            (message, _) => {
                tracing::warn!(pid = peer.pid, ?message, "a peer sent an unexpected message");
                self.hung_up(id);
            }
        }
    }

    /// Takes a client in that has said hello.
    pub(super) fn greet(&mut self, id: u64, hello: Hello) {
        let differs = |h: &Hello| {
            h.local_rank == hello.local_rank || h.local_size != hello.local_size || h.request != hello.request
        };
        let other = self.ranks().find(|(_, h)| differs(h));
        let other = other.map(|(_, h)| h);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if hello.role == Role::Rank {
            self.seen.0.insert(hello.local_rank);
            self.seen.1 = hello.local_size;
        }
        if matches!(self.stage, Stage::Failed) {
            return self.refuse();
        }
        match hello.role {
            Role::Rank if matches!(self.stage, Stage::Gathering) => {
                peer.counted = true;
                let pid = peer.pid;
                self.rank_runs(pid, hello);
                self.deadline.rank_has_come();
                self.request = hello.request;
                if let Some(other) = other.filter(|o| o.request != hello.request) {
                    let why = format!("it asks for other buffers than rank {} of the same job", other.rank);
                    self.lost_with(id, JobError::new(ErrorClass::Disagreed, why));
                } else if let Some(other) = other {
                    let why = format!(
                        "it says that it is local rank {} of {}, and another said {} of {}: are these two jobs under one name?",
                        hello.local_rank, hello.local_size, other.local_rank, other.local_size
                    );
                    self.lost(id, why);
                }
            }
            Role::Rank if hello.request != self.request => {
                let why = "this job has its buffers already, and this rank asks for others: one `hostbuf exec` after \
                           another in one job must ask for the same";
                let error = ErrorRecord::new(ErrorClass::Disagreed, why);
                self.send(id, &Message::Fail { prints: true, error });
            }
            // The engine may start processes later (MPI_Comm_spawn). They attach, and are not
            // counted.
            Role::Rank | Role::Late | Role::Library => {
                self.supply(id);
            }
            Role::Member => self.join(id, hello),
            role => {
                tracing::warn!(pid = peer.pid, ?role, "a peer has a role that this agent does not serve");
                self.hung_up(id);
            }
        }
    }

    /// Handles the end of a connection. The process may live on without it.
    pub(super) fn hung_up(&mut self, id: u64) {
        let running = matches!(self.stage, Stage::Running | Stage::Failed);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.channel = None;
        peer.outbox.clear();
        if peer.process.is_none() {
            self.heard_out(id);
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let hello = peer.hello;
        match hello.role {
            Role::Rank if !running && peer.counted => {
                self.lost(id, "it ended before it had the buffer".into());
            }
            Role::Member => self.member_left(id, hello, true),
            _ => {}
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let mut others = self.peers.iter().filter(|(other, p)| **other != id && p.pid == peer.pid);
        // One pidfd is enough for a process, even with several connections.
        let watched = running && others.any(|(_, p)| p.process.is_some());
        if watched || peer.process.is_none() {
            self.peers.remove(&id);
        }
    }

    /// Handles the end of a process.
    pub(super) fn departed(&mut self, id: u64) {
        // Frames from before its end are still valid.
        self.read(id, MAX_BACKLOG);
        let pid = self.peers.get(&id).map(|peer| peer.pid);
        self.hung_up(id);
        self.peers.remove(&id);
        self.heard_out(id);
        if let Some(pid) = pid {
            self.rank_ended(pid);
        }
        if matches!(self.stage, Stage::Asking(_)) {
            self.look_if_answered();
        }
    }
}

/// Describes why a rank cannot hold a candidate of `length` bytes.
fn describe(refused: &RefusedCandidate<'_>, length: usize) -> String {
    let RefusedCandidate { address, errno, mapping: (start, end), path } = *refused;
    let mapping = (start as usize, end as usize);
    hostbuf::agree::reason(address as usize, length, errno as i32, mapping, path)
}
