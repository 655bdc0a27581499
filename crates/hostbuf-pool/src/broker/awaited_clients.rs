//! The clients of an earlier broker that have not connected yet.

use std::collections::BTreeSet;
use std::time::Instant;

use hostbuf_memory::memfd;

use super::predecessor::has_ended;
use super::segment_record::SegmentStage;
use super::state::BrokerState;
use crate::segment::ClientIdentity;

impl BrokerState {
    /// Ends the recovery once all memory of the earlier broker is known, and gives up the clients
    /// that have ended meanwhile.
    pub(super) fn advance_recovery(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            let files =
                self.segments.values().filter_map(|segment| memfd::inode(segment.files.marked()).ok());
            let adopted: BTreeSet<u64> = files.collect();
            if recovery.advance(&adopted) {
                self.recovery = None;
                tracing::info!(bytes = self.accounts.total(), "all memory of the earlier broker is known");
            }
        }
        self.give_up_ended();
    }

    /// Frees the rows of readers, and orphans the segments of producers, that have not connected to
    /// this broker and never will.
    fn give_up_ended(&mut self) {
        // A client that has handed back everything does not have what it has not named.
        let here = self.clients.values().filter(|client| client.has_handed_back);
        let here: BTreeSet<u64> = here.map(|client| client.identity).collect();
        let is_gone = |entry: Option<ClientIdentity>| {
            entry.is_none_or(|client| here.contains(&client.identity) || has_ended(client))
        };
        for segment in self.segments.values_mut() {
            if segment.stage == SegmentStage::Adopted && is_gone(segment.table.producer().load()) {
                segment.free_unpublished();
                segment.stage = SegmentStage::Orphaned(Instant::now());
            }
            for (number, row) in (0..).zip(&mut segment.rows) {
                let entry = segment.table.reader(number);
                match row {
                    Some(row) if row.is_awaited && is_gone(entry.load()) => {
                        row.is_awaited = false;
                        entry.clear();
                        row.view.clear();
                        entry.count_departure();
                        segment.files.space.notify();
                    }
                    // Only the reader and the producer have its file, and both are gone.
                    None if segment.producer.is_none() && is_gone(entry.load()) => {
                        entry.clear();
                        entry.count_departure();
                    }
                    _ => {}
                }
            }
        }
    }

    /// Returns whether a segment has a client that has not connected to this broker.
    pub(super) fn awaits_clients(&self) -> bool {
        self.segments
            .values()
            .any(|segment| segment.stage == SegmentStage::Adopted || segment.awaits_readers())
    }
}
