//! The messages of the peers, and the end of their connections and processes.

use hostbuf::JobError;
use hostbuf_os::{Packet, Received};
use hostbuf_protocol::message::{Message, RefusedCandidate, Role};

use super::super::orders::Question;
use super::super::rank_refusal::RankRefusal;
use super::outbox::MAX_BACKLOG;
use super::state::{RankAnswer, Server, Stage};

impl Server {
    /// Reads and handles at most `most` messages of a peer.
    pub(super) fn read(&mut self, id: u64, most: usize) {
        for _ in 0..most {
            let Some(channel) = self.peers.get(&id).and_then(|p| p.channel.as_ref()) else { return };
            match channel.receive() {
                Ok(Received::Packet(packet)) => self.handle_packet(id, packet),
                Ok(Received::Nothing) => return,
                Err(error)
                    if error.raw_os_error() == Some(nix::libc::EMFILE) && self.gpu.creator == Some(id) =>
                {
                    return self.lacks_descriptors(id);
                }
                Ok(_) | Err(_) => return self.connection_ended(id),
            }
        }
    }

    fn handle_packet(&mut self, id: u64, mut packet: Packet) {
        let descriptors = std::mem::take(&mut packet.descriptors);
        let message = match packet.message() {
            Ok(message) => message,
            Err(error) => {
                let pid = self.peers.get(&id).map(|p| p.pid);
                tracing::warn!(pid, ?error, "a peer sent an invalid message");
                return self.connection_ended(id);
            }
        };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let hello = peer.hello;
        match (message, hello.role) {
            (Message::Ready { address_window, coverage, reason }, Role::Rank) => {
                peer.ready = Some(address_window);
                peer.coverage = (coverage, String::from_utf8_lossy(reason).into_owned());
                if peer.counted {
                    self.deadline.progress();
                    self.check_present();
                }
            }
            (Message::Votes { mask, refusal }, Role::Rank) if peer.counted => {
                if let Stage::Asking(Question::Ballot(_, length)) = self.stage {
                    let rank = hello.rank as usize;
                    let refusal = refusal.map(|refused| RankRefusal {
                        rank,
                        why: describe(peer.pid, &refused, length),
                        is_final: refused.is_limit(),
                    });
                    peer.refusal = refusal.clone().or(peer.refusal.take());
                    peer.answer = Some(RankAnswer::Votes(mask, refusal));
                    self.deadline.progress();
                    self.check_answered();
                }
            }
            (Message::Hole { address }, Role::Rank) if peer.counted => {
                if let Stage::Asking(Question::Search { .. }) = self.stage {
                    peer.answer = Some(RankAnswer::Hole(address));
                    self.deadline.progress();
                    self.check_answered();
                }
            }
            // Another program in the place of a rank asks for the memory itself.
            (Message::GpuReady, Role::Rank) => peer.uses_gpus = peer.counted,
            (Message::GpuMemory { .. }, Role::Rank) if peer.uses_gpus => {
                self.gpu_memory_created(id, descriptors);
            }
            (Message::GpuMapped, Role::Rank) if peer.uses_gpus => self.gpu_sections_mapped(id),
            (Message::Mapped, role) if peer.served => {
                peer.mapped = true;
                if role == Role::Rank && peer.counted {
                    self.deadline.progress();
                    self.check_mapped();
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
                self.connection_ended(id);
            }
        }
    }

    /// Handles the end of a connection. The process may live on without it.
    pub(super) fn connection_ended(&mut self, id: u64) {
        let running = matches!(self.stage, Stage::Running | Stage::Failed);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.channel = None;
        peer.outbox.clear();
        if peer.process.is_none() {
            self.printer_ended(id);
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let hello = peer.hello;
        match hello.role {
            Role::Rank if !running && peer.counted => {
                let why = "it ended before it had the buffer: read its own messages; if there are none, `dmesg` shows whether the \
                           kernel has ended it for lack of memory";
                self.lost(id, why.into());
            }
            Role::Member => self.member_left(id, hello, true),
            _ => {}
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let mut others = self.peers.iter().filter(|(other, p)| **other != id && p.pid == peer.pid);
        // One pidfd is enough for a process, even with several connections.
        let watched = running && others.any(|(_, p)| p.process.is_some());
        if watched || peer.process.is_none() {
            // Nothing reports the end of the process under this number any more.
            self.printer_ended(id);
            self.peers.remove(&id);
        }
    }

    /// Handles the end of a process.
    pub(super) fn process_ended(&mut self, id: u64) {
        // Frames from before its end are still valid.
        self.read(id, MAX_BACKLOG);
        let pid = self.peers.get(&id).map(|peer| peer.pid);
        self.connection_ended(id);
        self.peers.remove(&id);
        self.printer_ended(id);
        if let Some(pid) = pid {
            self.rank_ended(pid);
        }
        if matches!(self.stage, Stage::Asking(_)) {
            self.check_answered();
        }
    }
}

/// Describes why the rank with process `pid` cannot hold a candidate of `length` bytes.
fn describe(pid: i32, refused: &RefusedCandidate<'_>, length: usize) -> String {
    let RefusedCandidate { address, errno, mapping: (start, end), path } = *refused;
    let mapping = (start as usize, end as usize);
    hostbuf::agree::reason(pid, address as usize, length, errno as i32, mapping, path)
}
