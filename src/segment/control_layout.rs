//! The tables of the control file.
//!
//! ```text
//! 0        64                                                            length
//! | phases | state of buffer 0 | 1 | ... | rows of registrations ...     |
//! ```
//!
//! Each table begins on a cache line of its own. The rows of registrations take what the others
//! leave of the last 64 KiB, so a host with many ranks has room.

use hostbuf_protocol::contents::{Table, TableFile};

/// The unit of the lengths of the identity file and of the control file: a multiple of the page
/// size of every machine.
pub(super) const UNIT: u64 = 64 << 10;

/// The kind of the table with the durations of the phases.
pub(super) const PHASES: u16 = 3;
/// The kind of the table with the states of the buffers.
pub(super) const STATES: u16 = 4;
/// The kind of the table of registrations, whose first row is its head.
pub(super) const LEDGER: u16 = 5;

/// The version of the rows of all three tables.
const VERSION: u16 = 1;
/// The length in bytes of the rows that this build writes. A row of a later build may be longer, by
/// whole cache lines.
pub(super) const ROW_LENGTH: usize = 64;
/// The length of a cache line in bytes, to which rows are aligned.
const CACHE_LINE: usize = 64;
/// The number of rows of registrations for which there is always room.
const LEDGER_ROWS: usize = 256;
/// The largest length of a control file that is read, in bytes: tables that a later build has added
/// have room, and a forged table of contents cannot ask for much memory.
const MAX_LENGTH: u64 = 16 << 20;

/// The places of the tables in a control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLayout {
    /// The offset of the durations of the phases.
    pub(super) phases: usize,
    /// The offset of the state of the first buffer.
    pub(super) states: usize,
    /// The distance from the state of a buffer to that of the next.
    pub(super) state_length: usize,
    /// The number of buffers.
    pub(super) buffers: usize,
    /// The offset of the head of the table of registrations.
    pub(super) ledger: usize,
    /// The distance from a row of that table to the next.
    pub(super) registration_length: usize,
    /// The number of rows of that table, without its head.
    pub(super) registrations: usize,
    /// The length of the file in bytes.
    length: u64,
}

impl ControlLayout {
    /// Returns the layout for `buffers` buffers.
    #[must_use]
    pub fn new(buffers: usize) -> ControlLayout {
        let states = ROW_LENGTH;
        let ledger = states + buffers * ROW_LENGTH;
        let length = (ledger + LEDGER_ROWS * ROW_LENGTH).next_multiple_of(UNIT as usize);
        let registrations = (length - ledger) / ROW_LENGTH - 1;
        ControlLayout {
            phases: 0,
            states,
            state_length: ROW_LENGTH,
            buffers,
            ledger,
            registration_length: ROW_LENGTH,
            registrations,
            length: length as u64,
        }
    }

    /// Returns the length in bytes of the part of the control file that contains these tables. The
    /// file may be longer, if a later build has added tables.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the entries of the table of contents.
    pub(super) fn tables(&self) -> [Table; 3] {
        let table = |kind, rows: usize, offset: usize| Table {
            kind,
            version: VERSION,
            file: TableFile::Control,
            rows: rows as u32,
            row_length: ROW_LENGTH as u32,
            offset: offset as u64,
        };
        [
            table(PHASES, 1, self.phases),
            table(STATES, self.buffers, self.states),
            table(LEDGER, 1 + self.registrations, self.ledger),
        ]
    }

    /// Returns the layout that the entries of a table of contents describe, for `buffers` buffers.
    /// `None` if a table is missing or of another version, has rows that do not begin on a cache
    /// line, overlaps another, or ends beyond 16 MiB.
    pub(super) fn of(buffers: usize, find: impl Fn(u16) -> Option<Table>) -> Option<ControlLayout> {
        let table = |kind: u16, rows: usize| {
            let fits = |t: &Table| {
                t.version == VERSION
                    && t.file == TableFile::Control
                    && t.row_length as usize >= ROW_LENGTH
                    && (t.row_length as usize).is_multiple_of(CACHE_LINE)
                    && t.rows as usize >= rows
                    && t.offset.is_multiple_of(CACHE_LINE as u64)
                    && t.end().is_some_and(|end| end <= MAX_LENGTH)
            };
            find(kind).filter(fits)
        };
        let (phases, states, ledger) = (table(PHASES, 1)?, table(STATES, buffers)?, table(LEDGER, 2)?);
        let all = [phases, states, ledger];
        let overlap =
            |a: &Table, b: &Table| a.offset < b.end().unwrap_or(0) && b.offset < a.end().unwrap_or(0);
        if (0..all.len()).any(|i| all[..i].iter().any(|other| overlap(other, &all[i]))) {
            return None;
        }
        let end = all.iter().filter_map(Table::end).max()?;
        Some(ControlLayout {
            length: end.next_multiple_of(UNIT),
            phases: phases.offset as usize,
            states: states.offset as usize,
            state_length: states.row_length as usize,
            buffers,
            ledger: ledger.offset as usize,
            registration_length: ledger.row_length as usize,
            registrations: ledger.rows as usize - 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_protocol::limits::MAX_BUFFERS;

    #[test]
    fn a_layout_is_found_from_its_tables() {
        for buffers in [1, 2, 17, MAX_BUFFERS] {
            let layout = ControlLayout::new(buffers);
            assert!(layout.registrations >= LEDGER_ROWS - 1 && layout.length().is_multiple_of(UNIT));
            let tables = layout.tables();
            let find = |kind| tables.into_iter().find(|table| table.kind == kind);
            assert_eq!(ControlLayout::of(buffers, find), Some(layout));
            assert_eq!(ControlLayout::of(buffers + 1, find), None, "one state is missing");
            assert_eq!(ControlLayout::of(buffers, |kind| find(kind).filter(|t| t.kind != LEDGER)), None);
        }
    }

    #[test]
    fn tables_that_overlap_or_lie_across_cache_lines_are_refused() {
        let tables = ControlLayout::new(3).tables();
        let changed = |index: usize, change: &dyn Fn(&mut Table)| {
            let mut tables = tables;
            change(&mut tables[index]);
            ControlLayout::of(3, |kind| tables.into_iter().find(|table| table.kind == kind))
        };
        assert!(changed(0, &|_| {}).is_some());
        for (index, change) in [
            (0, &(|t: &mut Table| t.offset = 64) as &dyn Fn(&mut Table)),
            (1, &|t| t.offset += 8),
            (1, &|t| t.rows += 1),
            (1, &|t| t.file = TableFile::Identity),
            (2, &|t| t.version += 1),
            (2, &|t| t.row_length = 96),
            (2, &|t| t.row_length = 32),
            (1, &|t| t.row_length = 128),
            (2, &|t| t.offset = u64::MAX - 63),
            (2, &|t| t.rows = 1 << 20),
        ] {
            assert_eq!(changed(index, change), None);
        }
    }

    #[test]
    fn longer_rows_and_unknown_tables_are_accepted() {
        let mut tables = ControlLayout::new(3).tables().to_vec();
        tables[1].row_length = 192;
        tables[2].offset = tables[1].end().unwrap();
        tables[2].row_length = 128;
        tables.push(Table { kind: LEDGER + 1, version: 9, row_length: 7, ..tables[0] });
        let layout = ControlLayout::of(3, |kind| tables.iter().copied().find(|table| table.kind == kind));
        let layout = layout.expect("a later build may add columns and tables");
        assert_eq!((layout.state_length, layout.registration_length), (192, 128));
        assert!(layout.length() >= tables[2].end().unwrap());
    }

    #[test]
    fn the_length_covers_the_last_table_wherever_it_is() {
        let far = changed_offset(1, 1 << 20);
        assert!(far.length() >= (1 << 20) + 3 * ROW_LENGTH as u64);
        // The end of the ledger does not determine the length.
        assert!(far.length() > ControlLayout::new(3).length());
    }

    /// Returns the layout in which table `index` begins at `offset`.
    fn changed_offset(index: usize, offset: u64) -> ControlLayout {
        let mut tables = ControlLayout::new(3).tables();
        tables[index].offset = offset;
        ControlLayout::of(3, |kind| tables.into_iter().find(|table| table.kind == kind)).expect("it is valid")
    }
}
