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
    /// True once the reader has attached. A reader that has ended since is not waited for until it
    /// attaches again.
    has_attached: bool,
}

impl ReaderPolicy {
    pub(super) fn new(names: &[String]) -> ReaderPolicy {
        let reader =
            |name: &String| NamedReader { name: name.clone(), hash: name_hash(name), has_attached: false };
        ReaderPolicy { readers: names.iter().map(reader).collect() }
    }

    /// Returns whether all readers have finished with a generation of a block.
    pub(super) fn have_finished(
        &mut self,
        table: &TableView,
        rows: &[RowView],
        block: u32,
        generation: u64,
    ) -> bool {
        self.readers.iter_mut().all(|reader| {
            let is_named = |(row, _): &(u32, &RowView)| table.reader(*row).is_named(reader.hash);
            let mut found = (0..).zip(rows).filter(is_named).peekable();
            if found.peek().is_none() {
                return reader.has_attached;
            }
            reader.has_attached = true;
            // Several clients may have the name.
            found.all(|(_, row)| row.cell(block).has_finished(generation))
        })
    }

    /// Describes the readers that have never attached.
    pub(super) fn describe_missing(&self) -> String {
        let missing = self.readers.iter().filter(|reader| !reader.has_attached);
        missing.map(|reader| format!(", the reader {} has not attached yet", reader.name)).collect()
    }
}
