//! The end of clients and of segments.

use std::time::{Duration, Instant};

use hostbuf_os::process;

use super::client_record::ClientRecord;
use super::segment_record::{SegmentRecord, SegmentStage};
use super::state::BrokerState;
use crate::wire::{PoolMessage, SegmentKey};

/// The time between the end of a connection, or of a lock, and the end of its client if the kernel
/// does not report the end of the process: a device may still copy while the process ends.
pub(super) const END_GRACE: Duration = Duration::from_secs(1);

impl BrokerState {
    /// Notes the end of a client's connection. A process whose end the kernel reports keeps what it
    /// has until then; a client that has nothing ends at once, also if its process goes on.
    pub(super) fn disconnect(&mut self, client: u64) {
        let has_segment = |segment: &SegmentRecord| segment.mapped_by.iter().any(|(id, _)| *id == client);
        if !self.segments.values().any(has_segment) {
            return self.end_client(client);
        }
        let Some(record) = self.clients.get_mut(&client) else { return };
        record.connection = None;
        record.outbox.clear();
        record.disconnected.get_or_insert_with(Instant::now);
    }

    /// Ends the clients whose connection has ended, and whose process goes on without the segments:
    /// it has executed another program. A client whose process is unknown keeps what it has locked.
    pub(super) fn end_disconnected(&mut self) {
        let ended = |&(&id, record): &(&u64, &ClientRecord)| {
            let is_late = record.disconnected.is_some_and(|since| since.elapsed() >= END_GRACE);
            is_late
                && match record.process {
                    Some(_) => self.has_left_all(id, record),
                    None => self.has_locked_nothing(id),
                }
        };
        let list: Vec<u64> = self.clients.iter().filter(ended).map(|(&id, _)| id).collect();
        list.into_iter().for_each(|id| self.end_client(id));
    }

    /// Returns whether a process that goes on has closed all its segments.
    fn has_left_all(&self, client: u64, record: &ClientRecord) -> bool {
        !process::is_ending(record.pid)
            && self
                .segments
                .values()
                .all(|segment| segment.parts_of(client).into_iter().all(|part| !segment.may_have(part)))
    }

    /// Returns whether a client has no lock on the block table of any of its segments.
    fn has_locked_nothing(&self, client: u64) -> bool {
        self.segments
            .values()
            .all(|segment| !segment.parts_of(client).into_iter().any(|part| segment.is_locked_by(part)))
    }

    /// Takes back the rows and segments of a process that has ended.
    pub(super) fn end_client(&mut self, client: u64) {
        let Some(record) = self.clients.remove(&client) else { return };
        tracing::debug!(client = record.describe(), "a client has ended");
        let keys: Vec<SegmentKey> = self.segments.keys().copied().collect();
        for key in keys {
            let segment = self.segments.get_mut(&key).expect("it is listed");
            let parts = segment.parts_of(client);
            parts.iter().flatten().for_each(|&row| segment.free_row(client, row));
            if segment.producer == Some(client) {
                self.orphan(key);
            }
            parts.into_iter().for_each(|part| self.unmapped(client, key, part));
        }
    }

    /// Notes that a producer publishes nothing any more.
    pub(super) fn close(&mut self, client: u64, key: SegmentKey) {
        if self.segments.get(&key).is_some_and(|segment| segment.producer == Some(client)) {
            self.orphan(key);
        }
    }

    fn orphan(&mut self, key: SegmentKey) {
        let segment = self.segments.get_mut(&key).expect("the caller has found it");
        segment.producer = None;
        segment.table.producer().clear();
        segment.free_unpublished();
        match segment.stage {
            // No other process has had it.
            SegmentStage::Granted => segment.stage = SegmentStage::Ending,
            _ => segment.stage = SegmentStage::Orphaned(Instant::now()),
        }
    }

    /// Notes that a client has unmapped a segment: that of its row, or that which it has written.
    pub(super) fn detached(&mut self, client: u64, key: SegmentKey, row: Option<u32>) {
        if let Some(segment) = self.segments.get_mut(&key) {
            if let Some(row) = row {
                segment.free_row(client, row);
            }
            self.unmapped(client, key, row);
        }
    }

    /// Frees a segment that no process can have mapped any more.
    fn unmapped(&mut self, client: u64, key: SegmentKey, row: Option<u32>) {
        let Some(segment) = self.segments.get_mut(&key) else { return };
        segment.mapped_by.remove(&(client, row));
        if segment.stage == SegmentStage::Ending && segment.mapped_by.is_empty() && !segment.awaits_readers()
        {
            let segment = self.segments.remove(&key).expect("it was found");
            let (charged, bytes) = (segment.charged, segment.bytes);
            // The files are closed before their bytes are granted again.
            drop(segment);
            self.refund(charged, bytes);
        }
    }

    /// Ends all segments without producers and holds, for a request that needs their memory.
    pub(super) fn reclaim_unheld(&mut self) {
        for segment in self.segments.values_mut() {
            if matches!(segment.stage, SegmentStage::Orphaned(_)) && !segment.is_in_use() {
                segment.retire();
            }
        }
        self.end_segments();
    }

    /// Ends segments whose producers have ended, once nothing is held and the time for late readers
    /// is over.
    pub(super) fn end_segments(&mut self) {
        let keys: Vec<SegmentKey> = self.segments.keys().copied().collect();
        for key in keys {
            let segment = self.segments.get_mut(&key).expect("it is listed");
            if matches!(segment.stage, SegmentStage::Orphaned(since) if since.elapsed() >= self.linger) {
                segment.retire();
            }
            if segment.stage == SegmentStage::Retired && !segment.is_in_use() {
                segment.stage = SegmentStage::Ending;
                let mut readers: Vec<u64> = segment.mapped_by.iter().map(|(client, _)| *client).collect();
                readers.dedup();
                for reader in readers {
                    self.send(reader, &PoolMessage::Detach { key }, Vec::new());
                }
                // Nobody may have it mapped.
                self.unmapped(0, key, None);
            }
        }
    }
}
