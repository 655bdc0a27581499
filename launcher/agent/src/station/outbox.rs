//! The frames that wait until a peer reads.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use hostbuf_protocol::wire::Frame;

use super::state::Station;

/// The largest number of frames that may wait for a peer that does not read.
pub(super) const MAX_BACKLOG: usize = 1 << 13;

impl Station {
    /// Sends a frame, or keeps it until the peer reads.
    pub(super) fn send(&mut self, id: u64, frame: Frame, with_memory: bool) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.outbox.push_back((frame, with_memory));
            if peer.outbox.len() > MAX_BACKLOG {
                return self.hung_up(id);
            }
        }
        self.flush(id);
    }

    /// Sends the frames that wait for a peer.
    pub(super) fn flush(&mut self, id: u64) {
        let memory: Vec<RawFd> =
            self.result.iter().flat_map(|(_, fds)| fds.iter()).map(AsRawFd::as_raw_fd).collect();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(channel) = &peer.channel else { return };
        while let Some((frame, with_memory)) = peer.outbox.front() {
            match channel.send(frame, if *with_memory { &memory } else { &[] }) {
                Ok(()) => drop(peer.outbox.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The next read shows that the connection has ended.
                Err(_) => return peer.outbox.clear(),
            }
        }
    }
}
