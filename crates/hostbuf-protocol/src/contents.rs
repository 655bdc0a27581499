//! The head and the table of contents of a job's identity file, which describe the tables in the
//! identity file itself and in the control file.
//!
//! ```text
//! 0       8         12       16       24         32
//! | magic | version | tables | length | checksum | table | table | ...  | rows of the tables |
//!
//! table:  | kind (2) | version (2) | file (2) | reserved (2) | rows (4) | row length (4) |
//!         | offset (8) |
//! ```
//!
//! A part of hostbuf that needs a table of its own adds one to the list. A reader looks for the
//! kinds that it knows, so no other table moves for it. The checksum covers the `length` bytes that
//! are in use, except itself.

/// The version of the head.
pub const VERSION: u32 = 1;

const MAGIC: u64 = u64::from_ne_bytes(*b"hostbufI");
const HEAD: usize = 32;
const ENTRY: usize = 24;
const CHECKSUM: core::ops::Range<usize> = 24..32;

/// The file that contains a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
// Exhaustive: a new file is a new version of the contents, which every reader must handle.
pub enum TableFile {
    /// The identity file, which no process can change.
    Identity = 0,
    /// The control file, which all processes of the job change.
    Control = 1,
}

/// One table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: an entry of the contents; a new field is a new version of them.
pub struct Table {
    /// The kind of the table.
    pub kind: u16,
    /// The version of its rows.
    pub version: u16,
    /// The file that contains it.
    pub file: TableFile,
    /// The number of rows.
    pub rows: u32,
    /// The length of a row in bytes.
    pub row_length: u32,
    /// The offset of the first row in the file, in bytes.
    pub offset: u64,
}

impl Table {
    /// Returns the offset of the table's end in its file, in bytes, or `None` if no file is that
    /// long.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        u64::from(self.rows).checked_mul(u64::from(self.row_length))?.checked_add(self.offset)
    }
}

/// The reason why bytes are not the identity of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a reader reports each of them in its own words.
pub enum ContentsError {
    /// The magic number is this one instead.
    NotAnIdentity(u64),
    /// The head has this other version.
    OtherVersion(u32),
    /// The checksum, which has this value, does not match, or a table lies outside the file.
    Damaged(u64),
}

/// Returns the length of the head and of a list of `tables` tables, in bytes.
#[must_use]
pub fn length(tables: usize) -> usize {
    HEAD + tables * ENTRY
}

/// Writes the head and the list of `tables` to the beginning of `bytes`, which contain the rows
/// already. `digest` computes the checksum of two parts.
///
/// # Panics
/// If `bytes` are shorter than [`length`] states.
pub fn write(bytes: &mut [u8], tables: &[Table], digest: impl Fn(&[u8], &[u8]) -> u64) {
    bytes[0..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[12..16].copy_from_slice(&(tables.len() as u32).to_ne_bytes());
    let length = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&length.to_ne_bytes());
    for (entry, table) in bytes[HEAD..].chunks_exact_mut(ENTRY).zip(tables) {
        entry[0..2].copy_from_slice(&table.kind.to_ne_bytes());
        entry[2..4].copy_from_slice(&table.version.to_ne_bytes());
        entry[4..6].copy_from_slice(&(table.file as u16).to_ne_bytes());
        entry[6..8].fill(0);
        entry[8..12].copy_from_slice(&table.rows.to_ne_bytes());
        entry[12..16].copy_from_slice(&table.row_length.to_ne_bytes());
        entry[16..24].copy_from_slice(&table.offset.to_ne_bytes());
    }
    let checksum = digest(&bytes[..CHECKSUM.start], &bytes[CHECKSUM.end..]);
    bytes[CHECKSUM].copy_from_slice(&checksum.to_ne_bytes());
}

/// The table of contents of an identity file whose checksum matches.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    bytes: &'a [u8],
    tables: usize,
}

impl<'a> Contents<'a> {
    /// Checks the head, and that all tables of the identity file lie within it. `bytes` may be
    /// longer than the part that is in use; `digest` is as for [`write()`].
    ///
    /// # Errors
    /// See [`ContentsError`].
    pub fn parse(
        bytes: &'a [u8],
        digest: impl Fn(&[u8], &[u8]) -> u64,
    ) -> Result<Contents<'a>, ContentsError> {
        let found = long(bytes, 0).unwrap_or(0);
        if found != MAGIC {
            return Err(ContentsError::NotAnIdentity(found));
        }
        let version = word(bytes, 8).ok_or(ContentsError::Damaged(0))?;
        if version != VERSION {
            return Err(ContentsError::OtherVersion(version));
        }
        let checksum = long(bytes, CHECKSUM.start).ok_or(ContentsError::Damaged(0))?;
        let checked = || {
            let length = usize::try_from(long(bytes, 16)?).ok()?;
            let tables = word(bytes, 12)? as usize;
            let bytes = bytes.get(..length)?;
            let matches = digest(bytes.get(..CHECKSUM.start)?, bytes.get(CHECKSUM.end..)?) == checksum;
            let contents = Contents { bytes, tables };
            let inside = |table: Table| {
                table.file == TableFile::Control || table.end().is_some_and(|end| end <= length as u64)
            };
            let all = matches && (0..tables).all(|index| contents.entry(index).is_some_and(inside));
            all.then_some(contents)
        };
        checked().ok_or(ContentsError::Damaged(checksum))
    }

    /// Returns the table of this kind.
    #[must_use]
    pub fn table(&self, kind: u16) -> Option<Table> {
        (0..self.tables).filter_map(|index| self.entry(index)).find(|table| table.kind == kind)
    }

    /// Returns the rows of a table of the identity file.
    pub fn rows(&self, table: Table) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let range = table.offset as usize..table.end().unwrap_or(0) as usize;
        let inside = self.bytes.get(range).filter(|_| table.file == TableFile::Identity);
        inside.unwrap_or_default().chunks_exact((table.row_length as usize).max(1))
    }

    fn entry(&self, index: usize) -> Option<Table> {
        let at = ENTRY.checked_mul(index)?.checked_add(HEAD)?;
        let entry = self.bytes.get(at..at.checked_add(ENTRY)?)?;
        let file = match short(entry, 4)? {
            0 => TableFile::Identity,
            1 => TableFile::Control,
            _ => return None,
        };
        let (kind, version) = (short(entry, 0)?, short(entry, 2)?);
        let (rows, row_length, offset) = (word(entry, 8)?, word(entry, 12)?, long(entry, 16)?);
        Some(Table { kind, version, file, rows, row_length, offset })
    }
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a checksum that every byte and its place changes.
    fn digest(a: &[u8], b: &[u8]) -> u64 {
        a.iter().chain(b).fold(7, |sum: u64, &byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte))
    }

    fn table(kind: u16, file: TableFile, rows: u32, offset: u64) -> Table {
        Table { kind, version: 1, file, rows, row_length: 8, offset }
    }

    fn sample() -> (Vec<u8>, [Table; 3]) {
        let start = length(3);
        let tables = [
            table(1, TableFile::Identity, 2, start as u64),
            table(9, TableFile::Control, 7, 1 << 20),
            table(2, TableFile::Identity, 1, start as u64 + 16),
        ];
        let mut bytes = vec![0; start];
        bytes.extend((0..24).collect::<Vec<u8>>());
        write(&mut bytes, &tables, digest);
        (bytes, tables)
    }

    #[test]
    fn tables_are_found_by_their_kind() {
        let (mut bytes, tables) = sample();
        // The rest of the file is not in use.
        bytes.extend([0; 100]);
        let contents = Contents::parse(&bytes, digest).unwrap();
        for table in tables {
            assert_eq!(contents.table(table.kind), Some(table));
        }
        assert_eq!(contents.table(3), None);
        let rows: Vec<&[u8]> = contents.rows(tables[0]).collect();
        assert_eq!(rows, [&[0, 1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13, 14, 15]]);
        assert_eq!(contents.rows(tables[1]).count(), 0, "it is in the other file");
    }

    #[test]
    fn any_flipped_byte_and_any_cut_is_an_error() {
        let (bytes, _) = sample();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert!(Contents::parse(&other, digest).is_err(), "byte {at}");
            assert!(Contents::parse(&bytes[..at], digest).is_err(), "length {at}");
        }
    }

    #[test]
    fn a_table_outside_the_file_is_an_error_and_so_is_another_version() {
        let (mut bytes, mut tables) = sample();
        for (rows, offset) in [(2, 0), (u32::MAX, u64::MAX), (1, u64::MAX)] {
            let offset = if offset == 0 { bytes.len() as u64 - 8 } else { offset };
            tables[2] = Table { rows, offset, ..tables[2] };
            write(&mut bytes, &tables, digest);
            assert!(matches!(Contents::parse(&bytes, digest), Err(ContentsError::Damaged(_))));
        }
        bytes[8] += 1;
        assert_eq!(Contents::parse(&bytes, digest).unwrap_err(), ContentsError::OtherVersion(VERSION + 1));
        assert_eq!(Contents::parse(&[0; 64], digest).unwrap_err(), ContentsError::NotAnIdentity(0));
    }
}
