//! The block table of a segment, mapped.
//!
//! | offset | content |
//! | --- | --- |
//! | 0 | the statement of the producer that it waits |
//! | 64 | the counters of the producer |
//! | 512 | the producer: an entry of 48 bytes |
//! | 1024 | the readers: 32 entries of 48 bytes |
//! | 4096 | the words of the blocks, 64 bytes each |
//! | behind them | the headers of the blocks, 256 bytes each |

#![allow(unsafe_code, reason = "refers to the atomics in a mapping")]

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;

use hostbuf_memory::Result;

use super::client_entry::ClientEntry;
use super::file_layout::{HEADER_BYTES, WORD_BYTES, WORDS, headers};
use super::geometry::{MAX_READERS, SegmentGeometry};
use super::segment_file::{SegmentFile, ViewAccess};
use super::segment_mapping::SegmentMapping;
use crate::hold::{BlockWord, WaitingFlag};

const COUNTERS: usize = 64;
const PRODUCER: usize = 512;
const READERS: usize = 1024;

const _: () = assert!(size_of::<BlockWord>() == WORD_BYTES && size_of::<WaitingFlag>() == 64);
const _: () = assert!(READERS + MAX_READERS as usize * size_of::<ClientEntry>() <= WORDS);

/// The counters of a producer, which it alone writes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct ProducerCounters {
    /// The number of published blocks.
    pub(crate) published: AtomicU64,
    /// The number of times that no block was free.
    pub(crate) exhausted: AtomicU64,
    /// The highest sequence number that was published, plus one.
    pub(crate) next_sequence: AtomicU64,
    /// 1 once the producer has closed the segment, and all work on the GPU that writes published
    /// blocks has ended.
    pub(crate) is_complete: AtomicU64,
}

/// The block table of a segment, mapped. All of it may change at any time, so it is accessed by
/// atomics, and headers by copies.
#[derive(Debug)]
pub(crate) struct TableView {
    file: SegmentMapping,
    geometry: SegmentGeometry,
}

impl TableView {
    /// Maps the table.
    ///
    /// # Errors
    /// As for a [`SegmentFile`].
    pub(crate) fn map(
        file: BorrowedFd<'_>,
        geometry: SegmentGeometry,
        access: ViewAccess,
    ) -> Result<TableView> {
        Ok(TableView { file: SegmentFile::Table.map(file, geometry, access)?, geometry })
    }

    /// Returns whether this process has the mapping: a forked child has not.
    pub(crate) fn is_mapped(&self) -> bool {
        self.file.is_mapped()
    }

    /// Returns a reference to a structure of atomics.
    ///
    /// # Safety
    /// `T` consists of atomics, all of whose bit patterns are valid, and lies within the table at
    /// `offset`, a multiple of its alignment.
    unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.file.bytes() as usize);
        // SAFETY: by the caller's promise it lies in the mapping, which lives as long as `self`.
        unsafe { &*((self.file.start() + offset) as *const T) }
    }

    /// Returns the statement of the producer that it waits.
    pub(crate) fn waiting(&self) -> &WaitingFlag {
        // SAFETY: the head of every table has it.
        unsafe { self.at(0) }
    }

    /// Returns the counters of the producer.
    pub(crate) fn counters(&self) -> &ProducerCounters {
        // SAFETY: the head of every table has them.
        unsafe { self.at(COUNTERS) }
    }

    /// Returns the entry of the producer.
    pub(crate) fn producer(&self) -> &ClientEntry {
        // SAFETY: the head of every table has it.
        unsafe { self.at(PRODUCER) }
    }

    /// Returns the entry of a reader.
    ///
    /// # Panics
    /// If there is no such row.
    pub(crate) fn reader(&self, row: u32) -> &ClientEntry {
        assert!(row < self.geometry.readers(), "row {row} of {}", self.geometry.readers());
        // SAFETY: the head of every table has them.
        unsafe { self.at(READERS + row as usize * size_of::<ClientEntry>()) }
    }

    /// Returns the word of a block.
    ///
    /// # Panics
    /// If there is no such block.
    #[inline]
    pub(crate) fn word(&self, block: u32) -> &BlockWord {
        assert!(block < self.geometry.blocks(), "block {block} of {}", self.geometry.blocks());
        // SAFETY: the table has a word for each block.
        unsafe { self.at(WORDS + block as usize * WORD_BYTES) }
    }

    fn header(&self, block: u32) -> *mut [u8; HEADER_BYTES] {
        let blocks = self.geometry.blocks();
        assert!(block < blocks, "block {block} of {blocks}");
        let offset = headers(self.geometry) + block as usize * HEADER_BYTES;
        (self.file.start() + offset) as *mut [u8; HEADER_BYTES]
    }

    /// Copies the header of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub(crate) fn read_header(&self, block: u32) -> [u8; HEADER_BYTES] {
        // SAFETY: within the mapping, and valid for any content. Volatile, since a producer that
        // breaks the protocol may write meanwhile; the header's hash is checked on the copy.
        unsafe { self.header(block).read_volatile() }
    }

    /// Writes the header of a block that this producer is writing.
    ///
    /// # Panics
    /// If there is no such block.
    pub(crate) fn write_header(&self, block: u32, header: &[u8; HEADER_BYTES]) {
        // SAFETY: within the mapping, which a producer has mapped for writing; readers do not read
        // the header of a block that is not published.
        unsafe { self.header(block).write_volatile(*header) };
    }
}
