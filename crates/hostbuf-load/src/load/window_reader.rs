//! The threads of a rank that read windows.

#![allow(unsafe_code, reason = "writes to the windows that this thread has claimed")]

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use hostbuf_staging::{RangeName, ReadAt, ThreadRange};

use super::open_files::OpenFiles;
use super::window_pieces::{self, WindowPiece};
use crate::clock;
use crate::error::{FileProblem, LoadError};
use crate::opened_file::OpenedFile;
use crate::progress::LoadProgress;
use crate::shared::{LoadBoard, LoadedRegion, add_time};
use crate::table::TensorTable;

/// The state that the threads of a rank read windows with.
pub(super) struct WindowReader<'l> {
    pub(super) table: &'l TensorTable,
    pub(super) region: &'l LoadedRegion,
    pub(super) board: &'l LoadBoard,
    pub(super) files: &'l OpenFiles<'l>,
    /// The windows of this host.
    pub(super) windows: Range<u64>,
    pub(super) piece_bytes: u64,
    pub(super) progress: &'l LoadProgress,
    pub(super) observer: &'l (dyn Fn(&LoadProgress) + Sync),
}

impl WindowReader<'_> {
    /// Reads windows of this host until `limit` of them are claimed, or a rank of this host has
    /// failed. Several threads and all ranks do so at a time.
    ///
    /// # Errors
    /// [`LoadError::File`]. The other threads and ranks of this host then stop.
    pub(super) fn read(&self, limit: u64) -> Result<(), LoadError> {
        while !self.board.is_stopped()
            && let Some(claimed) = self.board.claim(limit)
        {
            let number = self.windows.start + claimed;
            match self.read_window(number) {
                Ok(true) => {
                    self.board.set_ready(number);
                    (self.observer)(self.progress);
                }
                Ok(false) => {}
                Err(error) => {
                    self.board.stop();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Reads a window. Returns false if it was given up, since another rank has failed.
    fn read_window(&self, number: u64) -> Result<bool, LoadError> {
        let root = self.region.root();
        let window = window_pieces::window(number, root.window_bytes, root.region_bytes);
        for piece in window_pieces::pieces(self.table, window, self.piece_bytes) {
            if self.board.is_stopped() {
                return Ok(false);
            }
            self.read_piece(&piece)?;
        }
        Ok(true)
    }

    fn read_piece(&self, piece: &WindowPiece) -> Result<(), LoadError> {
        let open = self.files.get(piece.file)?;
        let bytes = piece.bytes.end - piece.bytes.start;
        let _range = ThreadRange::of_bytes(RangeName::ReadPiece, bytes as usize);
        // Bypassing the page cache, the last page of a file is read whole. The bytes of its page in
        // the region belong to the file, since files begin at pages.
        let alignment = open.file.alignment();
        let whole = bytes.next_multiple_of(alignment);
        let place = piece.region_offset..piece.region_offset + whole;
        // SAFETY: this thread has claimed the window, and the piece, with the rest of its page, is
        // within it.
        let into = unsafe { self.region.bytes_mut(place) };
        let counters = self.board.counters();
        let mut done = 0;
        while (done as u64) < bytes {
            let offset = piece.bytes.start + done as u64;
            let (read, duration, waited) =
                clock::time(|| open.file.read_non_temporal_at(&mut into[done..], offset));
            add_time(&counters.reading, duration);
            add_time(&counters.waiting, waited);
            done += self.bytes_of(&open, read)?;
        }
        counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of bytes of a read.
    fn bytes_of(&self, open: &OpenedFile, read: io::Result<usize>) -> Result<usize, LoadError> {
        match read {
            Ok(0) => Err(open.ended().into()),
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(FileProblem::io("reading")(error).at(open.path()).into()),
        }
    }
}
