//! A segment of the broker.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::segment_bytes::SegmentBytes;
use super::segment_data::SegmentData;
use hostbuf_os::PrivateFd;

use crate::hold::{BlockState, are_unheld};
use crate::segment::{
    ClientEntry, ClientIdentity, RowView, SegmentFile, SpaceEvent, TableView, ViewAccess, is_locked,
    open_locked,
};
use crate::wire::SegmentTerms;

/// The stages of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentStage {
    /// The producer has not mapped it yet.
    Granted,
    /// The producer publishes.
    Live,
    /// A reader has handed it back from an earlier broker, and its producer has not connected yet.
    Adopted,
    /// The producer has ended or closed the segment at this time. Readers may still acquire what it
    /// has published.
    Orphaned(Instant),
    /// Nothing can be acquired. The segment ends when nothing is held.
    Retired,
    /// Nothing is held, and the clients have been told to unmap it.
    Ending,
}

/// The row of a reader.
#[derive(Debug)]
pub(super) struct RowRecord {
    pub(super) file: PrivateFd,
    pub(super) view: RowView,
    /// The client that has the row.
    pub(super) reader: Option<u64>,
    /// True if a client of an earlier broker has the row, and has not connected to this one.
    pub(super) is_awaited: bool,
}

/// The files of a segment.
#[derive(Debug)]
pub(super) struct SegmentFiles {
    pub(super) data: SegmentData,
    pub(super) table: PrivateFd,
    pub(super) space: SpaceEvent,
}

/// A segment, as the broker knows it.
#[derive(Debug)]
pub(super) struct SegmentRecord {
    pub(super) terms: SegmentTerms,
    pub(super) stream: String,
    pub(super) stage: SegmentStage,
    /// The client that is charged, also after its end.
    pub(super) charged: u64,
    /// The description of the producer, for people.
    pub(super) producer_name: String,
    /// The producer while it has the segment.
    pub(super) producer: Option<u64>,
    pub(super) bytes: SegmentBytes,
    pub(super) files: SegmentFiles,
    pub(super) table: TableView,
    /// The rows. A row is absent if no client of an earlier broker has handed it back.
    pub(super) rows: Vec<Option<RowRecord>>,
    /// The clients that may have the segment mapped, each with its row, or `None` for the producer.
    pub(super) mapped_by: BTreeSet<(u64, Option<u32>)>,
    /// The parts of awaited clients whose locks have gone, each with the time of the first look
    /// without the lock.
    pub(super) unlocked: BTreeMap<Option<u32>, Instant>,
}

/// Returns the number of bytes of a segment, of which `data` are those of the data file.
pub(super) fn segment_bytes(terms: SegmentTerms, data: u64) -> SegmentBytes {
    let geometry = terms.geometry;
    let rows = SegmentFile::Row.bytes(geometry) * u64::from(geometry.readers());
    let host = data + SegmentFile::Table.bytes(geometry) + rows;
    match terms.gpu {
        None => SegmentBytes { host, gpu: 0 },
        Some(gpu) => SegmentBytes { host: host + SegmentFile::Events.bytes(geometry), gpu: gpu.bytes() },
    }
}

impl SegmentFiles {
    /// Returns the file whose name contains the broker's mark.
    pub(super) fn marked(&self) -> BorrowedFd<'_> {
        self.data.host().unwrap_or(self.table.as_fd())
    }
}

impl SegmentRecord {
    /// Returns whether no reader holds a block. Rows without readers do not count: whatever another
    /// process has written there must not keep the segment.
    fn is_unheld(&self, block: u32) -> bool {
        let is_used = |row: &&RowRecord| row.reader.is_some() || row.is_awaited;
        are_unheld(self.rows.iter().flatten().filter(is_used).map(|row| row.view.cell(block)))
    }

    /// Returns the numbers of all blocks.
    pub(super) fn blocks(&self) -> std::ops::Range<u32> {
        0..self.terms.geometry.blocks()
    }

    /// Returns whether a reader holds a block, or may hold one without being known yet.
    pub(super) fn is_in_use(&self) -> bool {
        self.awaits_readers() || !self.blocks().all(|block| self.is_unheld(block))
    }

    /// Takes the block table over from a producer that has ended, and frees what it has not
    /// published.
    pub(super) fn free_unpublished(&self) {
        for block in self.blocks() {
            let word = self.table.word(block);
            if let (BlockState::Writing, generation) = word.load() {
                word.set(BlockState::Free, generation);
            }
        }
    }

    /// Lets no reader acquire anything any more. The producer has ended.
    pub(super) fn retire(&mut self) {
        for block in self.blocks() {
            let word = self.table.word(block);
            if let (BlockState::Published, generation) = word.load() {
                word.set(BlockState::Retired, generation);
            }
        }
        self.stage = SegmentStage::Retired;
    }

    /// Frees row `number` if `client` has it, and wakes the producer. The client has ended or left.
    pub(super) fn free_row(&mut self, client: u64, number: u32) {
        let row = self.rows.get_mut(number as usize).and_then(Option::as_mut);
        let Some(row) = row.filter(|row| row.reader == Some(client)) else { return };
        row.reader = None;
        self.table.reader(number).clear();
        row.view.clear();
        self.table.reader(number).count_departure();
        self.files.space.notify();
    }

    /// Frees row `number` of a client of an earlier broker that never connects to this one.
    pub(super) fn free_awaited(&mut self, number: u32) {
        let entry = self.table.reader(number);
        entry.clear();
        if let Some(row) = &mut self.rows[number as usize] {
            row.is_awaited = false;
            row.view.clear();
        }
        entry.count_departure();
        self.files.space.notify();
    }

    /// Names the client of a row, or the producer, in the block table. The client has its
    /// descriptors.
    pub(super) fn set_client(&self, row: Option<u32>, client: ClientIdentity) {
        let client = ClientIdentity { is_locked: is_locked(self.files.table.as_fd(), row), ..client };
        self.entry(row).set(client);
    }

    /// Returns the entry of a row, or of the producer, in the block table.
    pub(super) fn entry(&self, row: Option<u32>) -> &ClientEntry {
        row.map_or_else(|| self.table.producer(), |row| self.table.reader(row))
    }

    /// Returns whether the client of a row, or the producer, has a lock on the block table, or may
    /// have the segment without one.
    pub(super) fn may_have(&self, row: Option<u32>) -> bool {
        let has_lock = self.entry(row).load().is_some_and(|client| client.is_locked);
        !has_lock || self.is_locked_by(row)
    }

    /// Returns whether the client of a row, or the producer, has a lock on the block table.
    pub(super) fn is_locked_by(&self, row: Option<u32>) -> bool {
        is_locked(self.files.table.as_fd(), row)
    }

    /// Returns the parts of `client` in the segment: its rows, and `None` if it is the producer.
    pub(super) fn parts_of(&self, client: u64) -> Vec<Option<u32>> {
        self.mapped_by.iter().filter(|(id, _)| *id == client).map(|(_, row)| *row).collect()
    }

    /// Returns whether the block table names a reader of an earlier broker that has not connected
    /// to this one. It may have the segment mapped, and hold blocks.
    pub(super) fn awaits_readers(&self) -> bool {
        (0..).zip(&self.rows).any(|(number, row)| {
            let is_here = row.as_ref().is_some_and(|row| row.reader.is_some() || !row.is_awaited);
            !is_here && self.table.reader(number).load().is_some()
        })
    }

    /// Returns copies of the descriptors for the producer: data, table, event, rows.
    ///
    /// # Errors
    /// As `dup(2)` and `open(2)`.
    pub(super) fn producer_descriptors(&self) -> io::Result<Vec<PrivateFd>> {
        let mut list = self.files.data.try_clone()?;
        list.push(open_locked(self.files.table.as_fd(), None, ViewAccess::Write)?);
        list.push(self.files.space.try_clone_fd()?);
        for row in self.rows.iter().flatten() {
            list.push(SegmentFile::read_only(row.file.as_fd())?);
        }
        Ok(list)
    }

    /// Returns copies of the descriptors for the reader of a row: data, table, event, row.
    ///
    /// # Errors
    /// As `dup(2)` and `open(2)`.
    pub(super) fn reader_descriptors(&self, number: u32, row: &RowRecord) -> io::Result<Vec<PrivateFd>> {
        let mut list = self.files.data.try_clone()?;
        list.push(open_locked(self.files.table.as_fd(), Some(number), ViewAccess::Read)?);
        list.push(self.files.space.try_clone_fd()?);
        list.push(row.file.try_clone()?);
        Ok(list)
    }
}
