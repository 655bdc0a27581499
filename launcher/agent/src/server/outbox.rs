//! The packets that wait until a peer reads.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use hostbuf_os::encode;
use hostbuf_protocol::message::Message;

use super::attached::Attached;
use super::state::Server;

/// The largest number of packets that may wait for a peer that does not read.
pub(super) const MAX_BACKLOG: usize = 1 << 13;

impl Server {
    /// Sends a message, or keeps it until the peer reads.
    pub(super) fn send(&mut self, id: u64, message: &Message<'_>) {
        self.send_packet(id, encode(message), Attached::Nothing);
    }

    /// Sends a packet with descriptors, or keeps it until the peer reads.
    pub(super) fn send_packet(&mut self, id: u64, packet: Vec<u8>, attached: Attached) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.outbox.push_back((packet, attached));
            if peer.outbox.len() > MAX_BACKLOG {
                return self.connection_ended(id);
            }
        }
        self.flush(id);
    }

    /// Sends the packets that wait for a peer.
    pub(super) fn flush(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(channel) = &peer.channel else { return };
        while let Some((packet, attached)) = peer.outbox.front() {
            let owned = match attached {
                Attached::Nothing => &[][..],
                Attached::Memory => self.result.as_ref().map_or(&[][..], |(_, memory)| memory),
                Attached::GpuMemory => &self.gpu.descriptors,
            };
            let descriptors: Vec<RawFd> = owned.iter().map(AsRawFd::as_raw_fd).collect();
            if !descriptors.is_empty() && self.crowded {
                return;
            }
            match channel.send_packet(packet, &descriptors) {
                Ok(()) => drop(peer.outbox.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.raw_os_error() == Some(nix::libc::ETOOMANYREFS) => {
                    tracing::debug!(id, "too many descriptors are in flight: the packet waits");
                    self.crowded = true;
                    return;
                }
                // The next read shows that the connection has ended.
                Err(_) => return peer.outbox.clear(),
            }
        }
    }

    /// Sends the packets of all peers that have waited for the receivers of other descriptors.
    pub(super) fn flush_all(&mut self) {
        let waiting = self.peers.iter().filter(|(_, p)| !p.outbox.is_empty());
        let waiting: Vec<u64> = waiting.map(|(&id, _)| id).collect();
        for id in waiting {
            self.flush(id);
        }
    }
}
