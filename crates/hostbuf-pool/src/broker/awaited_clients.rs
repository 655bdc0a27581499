//! The clients of an earlier broker that have not connected yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use hostbuf_memory::memfd;
use hostbuf_os::process;

use super::departures::END_GRACE;
use super::predecessor::{has_ended, is_visible};
use super::segment_record::{SegmentRecord, SegmentStage};
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
        for segment in self.segments.values_mut() {
            let mut unlocked = std::mem::take(&mut segment.unlocked);
            let mut is_gone = |segment: &SegmentRecord, part: Option<u32>| {
                segment.entry(part).load().is_none_or(|client| {
                    here.contains(&client.identity)
                        || has_ended(client)
                        || was_unlocked(&mut unlocked, segment, part, client)
                })
            };
            if segment.stage == SegmentStage::Adopted && is_gone(segment, None) {
                segment.free_unpublished();
                segment.stage = SegmentStage::Orphaned(Instant::now());
            }
            for number in 0..segment.terms.geometry.readers() {
                let row = segment.rows[number as usize].as_ref();
                let is_awaited = match row {
                    Some(row) => row.is_awaited,
                    // Only the reader and the producer have its file.
                    None => segment.producer.is_none() && segment.entry(Some(number)).load().is_some(),
                };
                if is_awaited && is_gone(segment, Some(number)) {
                    segment.free_awaited(number);
                }
            }
            segment.unlocked = unlocked;
        }
    }

    /// Returns whether a segment has a client that has not connected to this broker.
    pub(super) fn awaits_clients(&self) -> bool {
        self.segments
            .values()
            .any(|segment| segment.stage == SegmentStage::Adopted || segment.awaits_readers())
    }
}

/// Returns whether the lock of a client on the block table has been gone for long enough that no
/// device uses the segment any more.
fn was_unlocked(
    unlocked: &mut BTreeMap<Option<u32>, Instant>,
    segment: &SegmentRecord,
    part: Option<u32>,
    client: ClientIdentity,
) -> bool {
    // The end of a process that can be seen is seen.
    let is_ending = is_visible(client) && process::is_ending(client.pid);
    if is_ending || segment.may_have(part) {
        unlocked.remove(&part);
        return false;
    }
    unlocked.entry(part).or_insert_with(Instant::now).elapsed() >= END_GRACE
}
