//! Collective operations among the ranks of a host, which meet at the agent: everybody's part to everybody.

use std::collections::BTreeMap;

use hostbuf_protocol::wire::{Frame, Hello, Kind, Role};

use super::state::{Peer, Station};

/// To how many unfinished gatherings a member may have brought its part: one that keeps to the protocol waits for each.
const MAX_GATHERS: usize = 2;

impl Station {
    /// A process joins; a rank does so once at a time, or two handles would take each other's parts.
    pub(super) fn join(&mut self, id: u64, hello: Hello) {
        let same = |(&other, p): (&u64, &Peer)| {
            let member = p.hello.is_some_and(|h| h.role == Role::Member && h.local_rank == hello.local_rank);
            other != id && member && p.channel.is_some()
        };
        if self.peers.iter().any(same) {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.hello = None;
            }
            let why = format!(
                "local rank {} takes part already: make job::Local once, and split it",
                hello.local_rank
            );
            self.send(id, Frame::new(Kind::Fail).with(&[1, 0]).saying(why.as_bytes()), false);
        }
    }

    /// Takes a member's part of a gathering of the group `word 1`, which has `word 2` members; the last one completes it.
    pub(super) fn gather(&mut self, id: u64, hello: Hello, frame: &Frame) {
        let [sequence, group, size] = [0, 1, 2].map(|i| frame.words[i]);
        let brought = self.gathers.values().flat_map(BTreeMap::values).filter(|(by, _)| *by == id).count();
        if brought >= MAX_GATHERS || size == 0 || size > hello.local_size {
            return self.hung_up(id);
        }
        let key = (group, sequence);
        let parts = self.gathers.entry(key).or_default();
        parts.insert(hello.local_rank, (id, frame.text().to_vec()));
        if (parts.len() as u64) < size {
            return;
        }
        let parts = self.gathers.remove(&key).unwrap_or_default();
        for &(id, _) in parts.values() {
            for (&rank, (_, part)) in &parts {
                self.send(id, Frame::new(Kind::Gathered).with(&[sequence, rank]).saying(part), false);
            }
        }
    }

    /// The members of a host of this size.
    fn members(&self, size: u64) -> Vec<u64> {
        let member = |p: &Peer| p.hello.is_some_and(|h| h.role == Role::Member && h.local_size == size);
        self.peers.iter().filter(|(_, p)| member(p)).map(|(&id, _)| id).collect()
    }

    /// A member's process has gone: the others get an error for what they wait for.
    pub(super) fn member_left(&mut self, id: u64, hello: Hello) {
        self.peers.remove(&id);
        for parts in self.gathers.values_mut() {
            parts.retain(|_, (by, _)| *by != id);
        }
        self.gathers.retain(|_, parts| !parts.is_empty());
        for other in self.members(hello.local_size) {
            let why = format!("local rank {} has left", hello.local_rank);
            // Only an error to those who still wait for it; others never read this.
            self.send(other, Frame::new(Kind::Fail).with(&[1, 0]).saying(why.as_bytes()), false);
        }
    }
}
