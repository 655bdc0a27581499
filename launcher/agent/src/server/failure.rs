//! Reports a failed job to the ranks of a host, so that one of them prints the reason.

use hostbuf_os::encode;
use hostbuf_protocol::message::{Message, Role};

use super::attached::Attached;
use super::state::{ClientProcess, PrintingRank, Server};

impl Server {
    /// Tells the peers that the job has failed. Without a launcher, one rank of the host prints the
    /// reason. The other ranks are told only after that rank has ended, since an engine that sees
    /// one rank fail ends the others at once.
    pub(super) fn refuse(&mut self) {
        if self.print_failures && self.printing_rank == PrintingRank::None {
            // Also a rank that has connected after the failure, if it is the first.
            let able = self
                .peers
                .iter()
                .filter(|(_, peer)| peer.hello.role == Role::Rank && peer.channel.is_some() && !peer.refused);
            if let Some(id) = able.min_by_key(|(_, peer)| peer.hello.local_rank).map(|(&id, _)| id) {
                self.printing_rank = PrintingRank::Rank(id);
                return self.send_failure(id, true);
            }
        }
        if let PrintingRank::Rank(id) = self.printing_rank {
            if !self.has_left(id) {
                return;
            }
            self.printing_rank = PrintingRank::Done;
        }
        let rest: Vec<u64> = self.peers.iter().filter(|(_, p)| !p.refused).map(|(&id, _)| id).collect();
        for id in rest {
            self.send_failure(id, false);
        }
    }

    fn send_failure(&mut self, id: u64, prints: bool) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.refused = true;
            // The failure must not wait behind memory that cannot be sent now.
            peer.outbox.clear();
        }
        let Some(error) = self.failure.get() else { return };
        let packet = encode(&Message::Fail { prints, error: error.record() });
        self.send_packet(id, packet, Attached::Nothing);
    }

    /// Returns whether a peer has closed its connection, and its process has another one, so that
    /// the end of the process is not awaited.
    fn has_left(&self, id: u64) -> bool {
        self.peers.get(&id).is_none_or(|peer| {
            let is_same = |(other, p): (&u64, &ClientProcess)| *other != id && p.pid == peer.pid;
            peer.channel.is_none() && self.peers.iter().any(is_same)
        })
    }

    /// Tells the remaining peers after the rank that prints has ended.
    pub(super) fn printer_ended(&mut self, id: u64) {
        if self.printing_rank == PrintingRank::Rank(id) {
            self.printing_rank = PrintingRank::Done;
            self.refuse();
        }
    }
}
