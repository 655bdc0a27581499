//! The orders of the conductor, and the distribution of the memory.

use hostbuf_protocol::wire::{Frame, Kind, Role};

use super::super::orders::Order;
use super::state::{Stage, Station};

impl Station {
    /// Carries out an order of the conductor.
    pub(super) fn obey(&mut self, order: Order) {
        let ranks: Vec<u64> = self.ranks().map(|(&id, _)| id).collect();
        match order {
            Order::Ask(frame) => {
                let answer = if frame.kind() == Some(Kind::Search) { Kind::Hole } else { Kind::Votes };
                self.stage = Stage::Asking(answer);
                self.deadline.progress();
                self.asked = frame.words[0] as usize;
                for id in ranks {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.answer = None;
                    }
                    self.send(id, (*frame).clone(), false);
                }
            }
            Order::Serve(winner, descriptors) => {
                self.stage = Stage::Mapping;
                self.deadline.progress();
                self.result = Some((*winner, descriptors));
                for id in ranks {
                    self.supply(id);
                }
                self.look_if_mapped();
            }
            Order::Go => {
                self.stage = Stage::Running;
                let notice = self.notice();
                for id in ranks {
                    let text = notice.as_ref().filter(|(first, _)| *first == id).map_or("", |(_, text)| text);
                    self.send(id, Frame::new(Kind::Go).with_text(text.as_bytes()), false);
                }
                let waiting: Vec<u64> =
                    self.peers.iter().filter(|(_, p)| !p.served).map(|(&id, _)| id).collect();
                for id in waiting {
                    self.supply(id);
                }
            }
            Order::Fail(error) => {
                self.stage = Stage::Failed;
                self.failure = Some(error);
                self.refuse();
            }
        }
    }

    /// Sends the memory to a peer, if there is some. Until all ranks have mapped it, only their
    /// processes get it: once as ranks, and once more to register it.
    pub(super) fn supply(&mut self, id: u64) {
        let running = matches!(self.stage, Stage::Running);
        let Some((winner, _)) = &self.result else { return };
        let frame = winner.frame().with_text(self.report_of(id).as_bytes());
        let Some(pid) = self.peers.get(&id).map(|p| p.pid) else { return };
        let counted = self.peers.values().any(|p| p.counted && p.pid == pid);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(hello) = peer.hello.filter(|h| h.role != Role::Member) else { return };
        if peer.served || (!running && !counted) {
            return;
        }
        peer.served = true;
        self.send(id, frame, true);
        if running && hello.role == Role::Rank {
            self.send(id, Frame::new(Kind::Go), false);
        }
    }
}
