//! The blocks of a segment, mapped.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use hostbuf_memory::Result;

use super::geometry::SegmentGeometry;
use super::segment_file::{SegmentFile, ViewAccess};
use super::segment_mapping::SegmentMapping;

/// The data file of a segment, mapped. Other processes may read and, until it is sealed, write it:
/// the content of a block is accessed only by pointers, or while the protocol gives the block to
/// this process.
#[derive(Debug)]
pub(crate) struct DataView {
    file: SegmentMapping,
    geometry: SegmentGeometry,
}

impl DataView {
    /// Maps the data file.
    ///
    /// # Errors
    /// As for a [`SegmentFile`].
    pub(crate) fn map(
        file: BorrowedFd<'_>,
        geometry: SegmentGeometry,
        access: ViewAccess,
    ) -> Result<DataView> {
        Ok(DataView { file: SegmentFile::Data.map(file, geometry, access)?, geometry })
    }

    /// Returns the address of the first byte of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub(crate) fn block(&self, block: u32) -> NonNull<u8> {
        let address = self.file.start() + self.geometry.block_offset(block) as usize;
        NonNull::new(address as *mut u8).expect("a mapping is not at address 0")
    }

    /// Returns the address of the first byte, and the number of bytes.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.file.start(), self.file.bytes() as usize)
    }
}
