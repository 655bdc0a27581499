//! The readers that a producer waits for.

use crate::name_hash::name_hash;
use crate::segment::{RowView, TableView};

/// The readers that a producer waits for: a block is not reused before each of them has read it.
#[derive(Debug)]
pub(super) struct ReaderPolicy {
    readers: Vec<NamedReader>,
}

#[derive(Debug)]
struct NamedReader {
    name: String,
    hash: u64,
    /// The clients with the name that have attached and not left since, each with the sequence
    /// number of the first block that it is waited for.
    clients: Vec<(u64, u64)>,
    /// True once a client has attached. A reader that has ended since is not waited for until it
    /// attaches again.
    has_attached: bool,
}

impl ReaderPolicy {
    pub(super) fn new(names: &[String]) -> ReaderPolicy {
        let reader = |name: &String| NamedReader {
            name: name.clone(),
            hash: name_hash(name),
            clients: Vec::new(),
            has_attached: false,
        };
        ReaderPolicy { readers: names.iter().map(reader).collect() }
    }

    /// Looks which clients are attached. `next` is the sequence number of the next block.
    pub(super) fn observe(&mut self, table: &TableView, rows: u32, next: u64) {
        for reader in &mut self.readers {
            let entries = (0..rows).filter_map(|row| table.reader(row).load());
            let named: Vec<u64> =
                entries.filter(|entry| entry.name == reader.hash).map(|entry| entry.identity).collect();
            reader.clients.retain(|(identity, _)| named.contains(identity));
            for identity in named {
                if !reader.clients.iter().any(|(known, _)| *known == identity) {
                    // The first client is waited for from the first block on. A later one has not
                    // got the tokens of earlier blocks.
                    let first = if reader.has_attached { next } else { 0 };
                    reader.clients.push((identity, first));
                }
            }
            reader.has_attached |= !reader.clients.is_empty();
        }
    }

    /// Returns whether all readers have finished with a generation of a block, which has the
    /// sequence number `sequence`.
    pub(super) fn have_finished(
        &self,
        table: &TableView,
        rows: &[RowView],
        (block, generation): (u32, u64),
        sequence: u64,
    ) -> bool {
        self.readers.iter().all(|reader| {
            reader.has_attached
                && (0..).zip(rows).all(|(number, row)| {
                    let entry = table.reader(number).load().filter(|entry| entry.name == reader.hash);
                    let known = entry.map(|entry| reader.first_of(entry.identity));
                    known.is_none_or(|first| sequence < first || row.cell(block).has_finished(generation))
                })
        })
    }

    /// Describes the readers that have never attached.
    pub(super) fn describe_missing(&self) -> String {
        let missing = self.readers.iter().filter(|reader| !reader.has_attached);
        missing.map(|reader| format!(", the reader {} has not attached yet", reader.name)).collect()
    }
}

impl NamedReader {
    /// Returns the sequence number of the first block that a client is waited for. A client that
    /// has attached since the last look is waited for from the first block on.
    fn first_of(&self, identity: u64) -> u64 {
        self.clients.iter().find(|(known, _)| *known == identity).map_or(0, |(_, first)| *first)
    }
}
