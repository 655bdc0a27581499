//! Collective operations among the members of a host: the agent collects the part of each and sends
//! all parts to all.

use hostbuf_os::encode;
use hostbuf_protocol::message::{Hello, Message};

use super::attached::Attached;
use super::gather_parts::GatherKey;
use super::state::Server;

impl Server {
    /// Takes a member's part of an operation; the last of the `size` parts completes it.
    pub(super) fn gather(
        &mut self,
        id: u64,
        hello: Hello,
        (group, sequence): (u64, u64),
        size: u64,
        part: Vec<u8>,
    ) {
        if size == 0 || size > hello.local_size {
            return self.connection_ended(id);
        }
        // A member that has begun another operation has given up the one before.
        self.withdraw_part(id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // A member that was refused has been told why.
        let Some(generation) = peer.generation else { return };
        let key = GatherKey { local_size: hello.local_size, generation, group, sequence };
        peer.gathering = Some(key);
        let parts = self.gathers.entry(key).or_default();
        parts.insert(hello.local_rank, (id, part));
        if (parts.len() as u64) < size {
            return;
        }
        let parts = self.gathers.remove(&key).unwrap_or_default();
        for (&rank, (_, part)) in &parts {
            let packet = encode(&Message::Gathered { sequence, group, rank, part });
            for &(id, _) in parts.values() {
                self.send_packet(id, packet.clone(), Attached::Nothing);
            }
        }
        for (id, _) in parts.into_values() {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.gathering = None;
            }
        }
    }

    /// Removes a member's part of an unfinished operation.
    pub(super) fn withdraw_part(&mut self, id: u64) {
        let Some(key) = self.peers.get_mut(&id).and_then(|peer| peer.gathering.take()) else { return };
        let Some(parts) = self.gathers.get_mut(&key) else { return };
        parts.retain(|_, (by, _)| *by != id);
        if parts.is_empty() {
            self.gathers.remove(&key);
        }
    }
}
