//! Collective operations among the ranks of a host: the agent collects the part of each and sends
//! all parts to all.

use std::collections::BTreeMap;

use hostbuf::ErrorClass;
use hostbuf_os::encode;
use hostbuf_protocol::message::{Hello, Message, Role};

use super::state::{ClientProcess, Station};

/// The largest number of unfinished operations to which a member may have sent its part. The
/// protocol allows one at a time.
const MAX_GATHERS: usize = 2;

impl Station {
    /// Adds a member. A rank may have one handle at a time, since two would receive each other's
    /// parts.
    pub(super) fn join(&mut self, id: u64, hello: Hello) {
        let same = |(&other, p): (&u64, &ClientProcess)| {
            let member = p.hello.role == Role::Member && p.hello.local_rank == hello.local_rank;
            other != id && member && p.channel.is_some()
        };
        if self.peers.iter().any(same) {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.refused = true;
            }
            let why = format!(
                "local rank {} takes part already: make job::Local once, and split it",
                hello.local_rank
            );
            self.send(id, &fail(&why));
        }
    }

    /// Takes a member's part of an operation; the last of the `size` parts completes it.
    pub(super) fn gather(
        &mut self,
        id: u64,
        hello: Hello,
        (group, sequence): (u64, u64),
        size: u64,
        part: Vec<u8>,
    ) {
        let brought = self.gathers.values().flat_map(BTreeMap::values).filter(|(by, _)| *by == id).count();
        if brought >= MAX_GATHERS || size == 0 || size > hello.local_size {
            return self.hung_up(id);
        }
        let key = (group, sequence);
        let parts = self.gathers.entry(key).or_default();
        parts.insert(hello.local_rank, (id, part));
        if (parts.len() as u64) < size {
            return;
        }
        let parts = self.gathers.remove(&key).unwrap_or_default();
        for (&rank, (_, part)) in &parts {
            let packet = encode(&Message::Gathered { sequence, rank, part });
            for &(id, _) in parts.values() {
                self.send_packet(id, packet.clone(), false);
            }
        }
    }

    /// Returns the members of a host of this size.
    fn members(&self, size: u64) -> Vec<u64> {
        let member =
            |p: &ClientProcess| p.hello.role == Role::Member && p.hello.local_size == size && !p.refused;
        self.peers.iter().filter(|(_, p)| member(p)).map(|(&id, _)| id).collect()
    }

    /// Reports an error to the other members when a member has ended.
    pub(super) fn member_left(&mut self, id: u64, hello: Hello) {
        self.peers.remove(&id);
        for parts in self.gathers.values_mut() {
            parts.retain(|_, (by, _)| *by != id);
        }
        self.gathers.retain(|_, parts| !parts.is_empty());
        for other in self.members(hello.local_size) {
            let why = format!("local rank {} has left", hello.local_rank);
            // Only members that still wait for the part read this.
            self.send(other, &fail(&why));
        }
    }
}

/// Returns the message that ends an operation.
fn fail(why: &str) -> Message<'_> {
    Message::Fail { status: ErrorClass::General.status(), prints: false, text: why.as_bytes() }
}
