//! The row of a reader, mapped.
//!
//! | offset | content |
//! | --- | --- |
//! | 0 | the counters of the reader |
//! | 64 | the histogram of its latencies |
//! | 4096 | the holds on the blocks, 16 bytes each |

#![allow(unsafe_code, reason = "refers to the atomics in a mapping")]

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use hostbuf_memory::Result;

use super::file_layout::{CELL_BYTES, CELLS};
use super::geometry::SegmentGeometry;
use super::segment_file::{SegmentFile, ViewAccess};
use super::segment_mapping::SegmentMapping;
use crate::hold::HoldCell;
use crate::latency::LatencyHistogram;

const LATENCIES: usize = 64;

const _: () = assert!(size_of::<HoldCell>() == CELL_BYTES && size_of::<ReaderCounters>() <= LATENCIES);
const _: () = assert!(LATENCIES + size_of::<LatencyHistogram>() <= CELLS);

/// The counters of a reader, which it alone writes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct ReaderCounters {
    /// The number of blocks that were acquired.
    pub(crate) acquired: AtomicU64,
    /// The number of tokens whose block was gone.
    pub(crate) gone: AtomicU64,
}

/// The row of a reader, mapped. The producer and the broker read it, and trust nothing in it: a
/// count that is wrong keeps a block out of use, or frees it for overwriting what only this reader
/// reads.
#[derive(Debug)]
pub(crate) struct RowView {
    file: SegmentMapping,
    geometry: SegmentGeometry,
}

impl RowView {
    /// Maps the row.
    ///
    /// # Errors
    /// As for a [`SegmentFile`].
    pub(crate) fn map(
        file: BorrowedFd<'_>,
        geometry: SegmentGeometry,
        access: ViewAccess,
    ) -> Result<RowView> {
        Ok(RowView { file: SegmentFile::Row.map(file, geometry, access)?, geometry })
    }

    /// Returns the counters of the reader.
    pub(crate) fn counters(&self) -> &ReaderCounters {
        // SAFETY: the head of every row has them: atomics, within the mapping.
        unsafe { &*(self.file.start() as *const ReaderCounters) }
    }

    /// Returns the histogram of the times between publishing and acquiring.
    pub(crate) fn latencies(&self) -> &LatencyHistogram {
        // SAFETY: the head of every row has it: atomics, within the mapping, at a multiple of 64.
        unsafe { &*((self.file.start() + LATENCIES) as *const LatencyHistogram) }
    }

    /// Returns the cell of a block.
    ///
    /// # Panics
    /// If there is no such block.
    #[inline]
    pub(crate) fn cell(&self, block: u32) -> &HoldCell {
        assert!(block < self.geometry.blocks(), "block {block} of {}", self.geometry.blocks());
        let offset = CELLS + block as usize * CELL_BYTES;
        // SAFETY: the row has a cell for each block: atomics, within the mapping.
        unsafe { &*((self.file.start() + offset) as *const HoldCell) }
    }

    /// Returns the number of blocks with holds.
    pub(crate) fn held_blocks(&self) -> u32 {
        (0..self.geometry.blocks()).filter(|&block| self.cell(block).count() > 0).count() as u32
    }

    /// Makes the row that of a new reader: without holds, with counters of 0.
    pub(crate) fn reset(&self) {
        self.clear();
        self.counters().acquired.store(0, Ordering::Relaxed);
        self.counters().gone.store(0, Ordering::Relaxed);
        self.latencies().reset();
    }

    /// Removes all holds of a reader whose process has ended.
    pub(crate) fn clear(&self) {
        (0..self.geometry.blocks()).for_each(|block| self.cell(block).clear());
    }
}
