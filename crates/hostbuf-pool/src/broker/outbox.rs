//! The packets that wait until a client reads.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use hostbuf_os::PrivateFd;

use super::queued_packet::QueuedPacket;
use super::state::BrokerState;
use crate::wire::PoolMessage;

/// The largest number of packets that may wait for a client that does not read. A client gets a few
/// packets for each of its requests, and one for each segment that ends.
const MAX_WAITING: usize = 1 << 13;
/// The largest number of descriptors in these packets.
const MAX_WAITING_DESCRIPTORS: usize = 1 << 10;
/// The largest number of bytes of these packets.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// Returns whether the same packet can be sent later.
fn is_temporary(error: &io::Error) -> bool {
    match error.raw_os_error() {
        // ETOOMANYREFS: too many descriptors are on their way to processes of this user.
        Some(libc::ETOOMANYREFS | libc::ENOMEM | libc::ENOBUFS) => true,
        _ => error.kind() == io::ErrorKind::WouldBlock,
    }
}

impl BrokerState {
    /// Sends a message, or keeps it until the client reads.
    pub(super) fn send(&mut self, client: u64, message: &PoolMessage<'_>, descriptors: Vec<PrivateFd>) {
        let Some(record) = self.clients.get_mut(&client) else { return };
        if record.connection.is_none() {
            return;
        }
        record.outbox.push_back(QueuedPacket { packet: message.encode(), descriptors });
        let descriptors: usize = record.outbox.iter().map(|queued| queued.descriptors.len()).sum();
        let bytes: usize = record.outbox.iter().map(|queued| queued.packet.len()).sum();
        if record.outbox.len() > MAX_WAITING
            || descriptors > MAX_WAITING_DESCRIPTORS
            || bytes > MAX_WAITING_BYTES
        {
            tracing::warn!(client = record.describe(), "a client does not read its messages: disconnected");
            return self.disconnect(client);
        }
        self.flush(client);
    }

    /// Sends the packets that wait for a client.
    pub(super) fn flush(&mut self, client: u64) {
        let Some(record) = self.clients.get_mut(&client) else { return };
        let Some(connection) = &record.connection else { return };
        while let Some(QueuedPacket { packet, descriptors }) = record.outbox.front() {
            let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
            match connection.send_packet(packet, &raw) {
                Ok(()) => drop(record.outbox.pop_front()),
                Err(error) if is_temporary(&error) => return,
                // The next receive shows the end of the connection.
                Err(_) => return record.outbox.clear(),
            }
        }
    }

    /// Sends what waits for all clients. Returns whether something still waits.
    pub(super) fn flush_all(&mut self) -> bool {
        let waiting: Vec<u64> =
            self.clients.iter().filter(|(_, c)| !c.outbox.is_empty()).map(|(&id, _)| id).collect();
        waiting.iter().for_each(|&id| self.flush(id));
        self.clients.values().any(|client| !client.outbox.is_empty())
    }
}
