//! The object by which the ranks find what was loaded into a buffer.

#![allow(unsafe_code, reason = "declares a type of plain numbers to be valid in every process")]

use hostbuf::{HostBuffer, Portable};

use super::load_board::LoadBoard;
use crate::error::LoadError;
use crate::table::TensorTable;

/// The alignment of the files in the buffer, if they are small.
const PAGE: u64 = 4096;
/// The alignment of large files: windows then lie on huge pages.
const HUGE_PAGE: u64 = 2 << 20;
/// The number of bytes from which on files are large.
const LARGE: u64 = 64 << 20;

/// The places of the parts of a load in its buffer. It is the root of the buffer. Offsets are in
/// bytes from the beginning of the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LoadRoot {
    pub(crate) board: u64,
    pub(crate) table: u64,
    pub(crate) table_bytes: u64,
    /// The offset of the first file.
    pub(crate) region: u64,
    /// The number of bytes of the files with the gaps between them.
    pub(crate) region_bytes: u64,
    pub(crate) window_bytes: u64,
}

// SAFETY: numbers only.
unsafe impl Portable for LoadRoot {
    const PLAIN: bool = true;
}

impl LoadRoot {
    /// Returns the layout of a load, with offsets from the beginning of its block.
    pub(crate) fn new(table: &TensorTable, table_bytes: u64, window_bytes: u64) -> LoadRoot {
        let region_bytes = table.region_bytes();
        let windows = region_bytes.div_ceil(window_bytes);
        let table_offset = LoadBoard::bytes(windows).next_multiple_of(64);
        let mut root =
            LoadRoot { table: table_offset, table_bytes, region_bytes, window_bytes, ..LoadRoot::default() };
        root.region = (table_offset + table_bytes).next_multiple_of(root.alignment());
        root
    }

    /// Reads the root at an offset of a buffer, which another process has written.
    ///
    /// # Errors
    /// [`LoadError::Damaged`] if it is not within the buffer, or its parts are not.
    pub(crate) fn read(buffer: &HostBuffer, offset: u64) -> Result<LoadRoot, LoadError> {
        let start = buffer.as_ptr().as_ptr().wrapping_add(offset as usize).cast::<LoadRoot>();
        if !buffer.contains(start.cast(), size_of::<LoadRoot>()) || !start.is_aligned() {
            return Err(LoadError::Damaged);
        }
        // SAFETY: within the mapping, aligned, and numbers only. Values that another process has
        // written meanwhile are checked.
        unsafe { start.read_volatile() }.check(buffer.len() as u64)
    }

    /// Returns the alignment of the block.
    pub(crate) fn alignment(&self) -> u64 {
        if self.region_bytes < LARGE { PAGE } else { HUGE_PAGE }
    }

    /// Returns the number of bytes of the block. It ends with a whole page, so that the last page
    /// of a file can be read bypassing the page cache.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.region + self.region_bytes.next_multiple_of(PAGE)
    }

    /// Returns the layout of a block that begins at `offset` in the buffer.
    pub(crate) fn at(self, offset: u64) -> LoadRoot {
        LoadRoot {
            board: self.board + offset,
            table: self.table + offset,
            region: self.region + offset,
            ..self
        }
    }

    /// Returns the number of windows.
    pub(crate) fn windows(&self) -> u64 {
        self.region_bytes.div_ceil(self.window_bytes)
    }

    /// Checks that all parts lie within a buffer of `end` bytes, where another process may have
    /// changed them.
    ///
    /// # Errors
    /// [`LoadError::Damaged`].
    pub(crate) fn check(self, end: u64) -> Result<LoadRoot, LoadError> {
        let fits = |offset: u64, bytes: u64| offset.checked_add(bytes).is_some_and(|last| last <= end);
        let is_valid = self.window_bytes.is_power_of_two()
            && self.window_bytes >= PAGE
            && self.board.is_multiple_of(64)
            && fits(self.table, self.table_bytes)
            && fits(self.region, self.region_bytes)
            && self.region.is_multiple_of(PAGE)
            && fits(self.board, LoadBoard::bytes(self.windows()));
        if is_valid { Ok(self) } else { Err(LoadError::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beyond_the_buffer_are_refused() {
        let root = LoadRoot {
            table: 4096,
            table_bytes: 100,
            region: 8192,
            region_bytes: 1 << 19,
            window_bytes: 4096,
            board: 0,
        };
        assert_eq!(root.check(1 << 20).expect("all parts are within"), root);
        let changes: [fn(&mut LoadRoot); 8] = [
            |root| root.board = 1 << 20,
            |root| root.board = 8,
            |root| root.table = u64::MAX,
            |root| root.table_bytes = 1 << 20,
            |root| root.region = 1 << 20,
            |root| root.region_bytes = u64::MAX,
            |root| root.window_bytes = 0,
            |root| root.window_bytes = 4097,
        ];
        for change in changes {
            let mut root = root;
            change(&mut root);
            assert!(matches!(root.check(1 << 20), Err(LoadError::Damaged)), "{root:?}");
        }
    }
}
