//! The orders of the coordinator, and the distribution of the memory.

use std::time::Instant;

use hostbuf_os::encode;
use hostbuf_protocol::message::{Message, Role};

use super::super::orders::{Event, Order};
use super::attached::Attached;
use super::state::{Server, Stage};

impl Server {
    /// Carries out an order of the coordinator.
    pub(super) fn handle_order(&mut self, order: Order) {
        let ranks: Vec<u64> = self.ranks().map(|(&id, _)| id).collect();
        match order {
            Order::Ask(question) => {
                self.stage = Stage::Asking(question);
                self.deadline.progress();
                for id in ranks {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.answer = None;
                    }
                    self.send(id, &question.message());
                }
            }
            Order::Serve(layout, descriptors) => {
                self.stage = Stage::Mapping;
                self.deadline.progress();
                self.result = Some((*layout, descriptors));
                for id in ranks {
                    self.send_memory(id);
                }
                self.check_mapped();
            }
            Order::MapGpu { address, pieces } => self.map_gpu_sections(address, pieces),
            Order::Go => {
                self.stage = Stage::Running;
                let notice = self.notice();
                for id in ranks {
                    let text = notice.as_ref().filter(|(first, _)| *first == id).map_or("", |(_, text)| text);
                    self.send(id, &Message::Go { notice: text.as_bytes() });
                }
                let waiting: Vec<u64> =
                    self.peers.iter().filter(|(_, p)| !p.served).map(|(&id, _)| id).collect();
                for id in waiting {
                    self.send_memory(id);
                }
                let _ = self.events.send(Event::Released);
            }
            Order::Fail(error) => {
                self.stage = Stage::Failed;
                self.failure.record(error);
                self.failed_at = Some(Instant::now());
                self.refuse();
            }
        }
    }

    /// Sends the memory to a peer, if there is some. Until all ranks have mapped it, only their
    /// processes get it: once as ranks, and once more to register it.
    pub(super) fn send_memory(&mut self, id: u64) {
        let running = matches!(self.stage, Stage::Running);
        let Some((layout, _)) = &self.result else { return };
        let packet =
            encode(&Message::Agreed { range: layout.range(), report: self.report_of(id).as_bytes() });
        let Some(pid) = self.peers.get(&id).map(|p| p.pid) else { return };
        let counted = self.peers.values().any(|p| p.counted && p.pid == pid);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let hello = peer.hello;
        if matches!(hello.role, Role::Member | Role::GpuUser)
            || peer.served
            || peer.refused
            || (!running && !counted)
        {
            return;
        }
        peer.served = true;
        self.send_packet(id, packet, Attached::Memory);
        if running && hello.role == Role::Rank {
            self.send(id, &Message::Go { notice: b"" });
        }
    }
}
