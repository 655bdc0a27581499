//! The bytes of files in a buffer.

#![allow(unsafe_code, reason = "makes views of a buffer by address")]

use std::ops::Range;
use std::slice;

use super::load_memory::LoadMemory;
use super::load_root::LoadRoot;

/// The bytes of a load in its buffer: the table, and the region of the files.
#[derive(Clone, Debug)]
pub(crate) struct LoadedRegion {
    memory: LoadMemory,
    root: LoadRoot,
}

impl LoadedRegion {
    /// Makes the view. `root` is checked.
    pub(crate) fn new(memory: LoadMemory, root: LoadRoot) -> LoadedRegion {
        LoadedRegion { memory, root }
    }

    pub(crate) fn memory(&self) -> &LoadMemory {
        &self.memory
    }

    pub(crate) fn root(&self) -> &LoadRoot {
        &self.root
    }

    /// Returns a copy of the encoded table, so that no other process changes it while it is
    /// decoded.
    pub(crate) fn table_copy(&self) -> Vec<u8> {
        // SAFETY: the root was checked. Another process that writes meanwhile breaks the rules of
        // the buffer; the checksum of the table finds it.
        unsafe {
            let table = self.memory.as_ptr().add(self.root.table as usize);
            slice::from_raw_parts(table.as_ptr(), self.root.table_bytes as usize).to_vec()
        }
    }

    /// Writes the encoded table.
    pub(crate) fn write_table(&self, table: &[u8]) {
        assert_eq!(table.len() as u64, self.root.table_bytes);
        // SAFETY: within the block that this process has taken; no other process uses it yet.
        unsafe {
            let to = self.memory.as_ptr().add(self.root.table as usize);
            to.as_ptr().copy_from_nonoverlapping(table.as_ptr(), table.len());
        }
    }

    /// Returns the bytes of a range of the region. They are complete once the load has ended.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub(crate) fn bytes(&self, range: Range<u64>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.root.region_bytes);
        // SAFETY: within the buffer, since the root was checked. The bytes of a filled buffer do
        // not change, by the rules of the buffer.
        unsafe {
            let start = self.memory.as_ptr().add((self.root.region + range.start) as usize);
            slice::from_raw_parts(start.as_ptr(), (range.end - range.start) as usize)
        }
    }

    /// Returns the address of the first byte of a range of the region.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub(crate) fn start(&self, range: Range<u64>) -> *const u8 {
        assert!(range.start <= range.end && range.end <= self.root.region_bytes);
        // SAFETY: within the buffer, since the root was checked.
        unsafe { self.memory.as_ptr().add((self.root.region + range.start) as usize) }.as_ptr().cast_const()
    }

    /// Returns the bytes of a range of the region, and those up to the end of their page, for
    /// writing.
    ///
    /// # Safety
    /// No other thread or process accesses the range meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the memory is shared, and the caller divides it")]
    pub(crate) unsafe fn bytes_mut(&self, range: Range<u64>) -> &mut [u8] {
        assert!(range.start <= range.end && self.root.region + range.end <= self.memory.bytes());
        // SAFETY: within the buffer; the caller guarantees that no other reference exists.
        unsafe {
            let start = self.memory.as_ptr().add((self.root.region + range.start) as usize);
            slice::from_raw_parts_mut(start.as_ptr(), (range.end - range.start) as usize)
        }
    }
}
