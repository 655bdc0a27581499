//! The progress of a load.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::since_boot;
use crate::counters::LoadCounters;
use crate::error::LoadError;
use crate::shared::{LoadBoard, LoadedRegion};
use crate::table::{TensorEntry, TensorTable};

/// The progress of a load on one host, which all its ranks share. Clones show the same load, also
/// in other threads, and keep the buffer mapped.
#[derive(Clone, Debug)]
pub struct LoadProgress {
    region: LoadedRegion,
    board: LoadBoard,
    file_bytes: u64,
}

impl LoadProgress {
    pub(crate) fn new(region: &LoadedRegion, table: &TensorTable) -> LoadProgress {
        let root = region.root();
        let board = LoadBoard::at(region.memory(), root.board, root.windows());
        LoadProgress { region: region.clone(), board, file_bytes: table.file_bytes() }
    }

    pub(crate) fn board(&self) -> &LoadBoard {
        &self.board
    }

    /// Returns the counters of this host. Those of copies to a device are 0.
    #[must_use]
    pub fn counters(&self) -> LoadCounters {
        let shared = self.board.counters();
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_nanos(number(counter));
        let end = match number(&shared.ended) {
            0 => since_boot(),
            ended => Duration::from_nanos(ended),
        };
        LoadCounters {
            file_bytes: self.file_bytes,
            bytes_read: number(&shared.bytes_read),
            bytes_received: number(&shared.bytes_received),
            job_bytes_read: number(&shared.job_bytes_read),
            elapsed: end.saturating_sub(time(&shared.begun)),
            reading: time(&shared.reading),
            waiting: time(&shared.waiting),
            replicating: time(&shared.replicating),
            readers: number(&shared.readers),
            ..LoadCounters::default()
        }
    }

    /// Returns the time of the end since the host was booted. `None` before.
    pub(crate) fn ended(&self) -> Option<Duration> {
        let ended = self.board.counters().ended.load(Ordering::Relaxed);
        (ended != 0).then(|| Duration::from_nanos(ended))
    }

    /// Reads the table of the files.
    ///
    /// # Errors
    /// [`LoadError::Table`] if a process has overwritten it.
    pub fn table(&self) -> Result<TensorTable, LoadError> {
        Ok(TensorTable::decode(&self.region.table_copy())?)
    }

    pub(crate) fn region(&self) -> &LoadedRegion {
        &self.region
    }

    pub(crate) fn is_window_ready(&self, window: u64) -> bool {
        self.board.is_ready(window)
    }

    /// Returns whether one of these windows is ready, or the load has ended.
    pub(crate) fn is_any_ready<'w>(&self, mut windows: impl Iterator<Item = &'w u64>) -> bool {
        self.ended().is_some() || windows.any(|&window| self.is_window_ready(window))
    }

    /// Returns whether all windows with bytes of `range` are ready, so that these bytes may be
    /// read. Offsets are those of [`TensorTable::region_offset`].
    #[must_use]
    pub fn is_ready(&self, range: Range<u64>) -> bool {
        let root = self.region.root();
        if range.is_empty() {
            return true;
        }
        let last = (range.end - 1) / root.window_bytes;
        range.end <= root.region_bytes
            && (range.start / root.window_bytes..=last).all(|window| self.board.is_ready(window))
    }

    /// Returns the bytes of a range of the region once they are [ready](LoadProgress::is_ready),
    /// for copies to a device while the rest is being read. An empty range has no bytes, wherever
    /// it is.
    #[must_use]
    pub fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        self.is_ready(range.clone()).then(|| self.region.bytes(range))
    }

    /// Returns whether all bytes of a tensor of the table are ready.
    ///
    /// # Panics
    /// As [`TensorTable::region_offset`], if the tensor is one of another table.
    #[must_use]
    pub fn has_tensor(&self, table: &TensorTable, tensor: &TensorEntry) -> bool {
        let start = table.region_offset(tensor);
        self.is_ready(start..start + tensor.bytes())
    }
}
