//! The registered files of an adopter, and the order in which they were used.

use std::collections::HashMap;
use std::sync::Arc;

use hostbuf_os::maps;
use hostbuf_register::Registrar;

use super::file_range::MemoryFileId;
use super::memory_file::MemoryFile;
use super::segment::AdoptedSegment;

/// The registered files by identity, at most one segment for each. A segment whose only owner is
/// this table is not held.
pub(super) struct SegmentTable<R: Registrar> {
    entries: HashMap<MemoryFileId, TableEntry<R>>,
    /// The number of lookups so far, which orders the entries.
    lookups: u64,
}

struct TableEntry<R: Registrar> {
    segment: Arc<AdoptedSegment<R>>,
    last_used: u64,
}

impl<R: Registrar> SegmentTable<R> {
    pub(super) fn new() -> SegmentTable<R> {
        SegmentTable { entries: HashMap::new(), lookups: 0 }
    }

    /// Returns the segment of a file and marks it as used.
    pub(super) fn find(&mut self, file: MemoryFileId) -> Option<Arc<AdoptedSegment<R>>> {
        self.lookups += 1;
        let entry = self.entries.get_mut(&file)?;
        entry.last_used = self.lookups;
        Some(entry.segment.clone())
    }

    pub(super) fn insert(&mut self, file: MemoryFileId, segment: Arc<AdoptedSegment<R>>) {
        self.lookups += 1;
        let old = self.entries.insert(file, TableEntry { segment, last_used: self.lookups });
        debug_assert!(old.is_none(), "the segment before was removed");
    }

    /// Removes the segment of a file. The caller drops it without the table's lock.
    pub(super) fn remove(&mut self, file: MemoryFileId) -> Option<Arc<AdoptedSegment<R>>> {
        self.entries.remove(&file).map(|entry| entry.segment)
    }

    /// Removes the segment of a file if it is still this one.
    pub(super) fn remove_same(&mut self, file: MemoryFileId, segment: &Arc<AdoptedSegment<R>>) {
        if self.entries.get(&file).is_some_and(|entry| Arc::ptr_eq(&entry.segment, segment)) {
            self.entries.remove(&file);
        }
    }

    /// Removes the least recently used segment that is not held.
    pub(super) fn evict(&mut self) -> Option<Arc<AdoptedSegment<R>>> {
        let unheld = self.entries.iter().filter(|(_, entry)| is_unheld(&entry.segment));
        let (&file, _) = unheld.min_by_key(|(_, entry)| entry.last_used)?;
        self.remove(file)
    }

    /// Removes the segments that are not held and whose file has neither a name nor another mapping
    /// or descriptor in this process: arrays of this process do not come to lie in them again.
    pub(super) fn remove_abandoned(&mut self) -> Vec<Arc<AdoptedSegment<R>>> {
        let unnamed = |entry: &TableEntry<R>| is_unheld(&entry.segment) && entry.segment.is_unlinked();
        let mut abandoned: Vec<MemoryFileId> =
            self.entries.iter().filter(|(_, entry)| unnamed(entry)).map(|(&file, _)| file).collect();
        if abandoned.is_empty() {
            return Vec::new();
        }
        let listed = maps::each(|mapping| {
            let file = MemoryFileId { device: mapping.device, inode: mapping.inode as u64 };
            let own = self.entries.get(&file).map(|entry| entry.segment.span());
            let is_own = own.is_some_and(|own| own.start() <= mapping.start && mapping.end <= own.end());
            if !is_own {
                abandoned.retain(|&other| other != file);
            }
            true
        });
        if listed.is_err() {
            return Vec::new();
        }
        abandoned.retain(|&file| {
            let own = self.entries.get(&file).map(|entry| entry.segment.descriptor());
            own.is_some_and(|own| !MemoryFile::has_other_descriptor(file, own))
        });
        abandoned.into_iter().filter_map(|file| self.remove(file)).collect()
    }
}

/// Returns whether only the table owns the segment. Another owner can appear only by a lookup in
/// the table, which the caller has locked.
fn is_unheld<R: Registrar>(segment: &Arc<AdoptedSegment<R>>) -> bool {
    Arc::strong_count(segment) == 1
}
