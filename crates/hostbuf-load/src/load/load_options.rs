//! The options of a load.

use std::thread::available_parallelism;

use hostbuf_staging::Backend;

use crate::error::LoadError;
use crate::shared::LoadRoot;
use crate::table::TensorTable;

/// The number of bytes that the root of a buffer and its alignment take.
const ROOT_BYTES: u64 = 128;

/// The options of a load. All ranks pass the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The backend by which files are read.
    pub backend: Backend,
    /// The length of a window in bytes, a power of two of at least 4096. A rank claims one window
    /// at a time, and windows become readable one by one.
    pub window_bytes: u64,
    /// The largest number of bytes of one read.
    pub piece_bytes: u64,
    /// The number of threads of each rank that read; 0 for as many as the rank has cores, if the
    /// ranks of its host share them equally, and at most 16.
    pub workers: usize,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            backend: Backend::Auto,
            window_bytes: LoadOptions::WINDOW_BYTES,
            piece_bytes: LoadOptions::PIECE_BYTES,
            workers: 0,
        }
    }
}

impl LoadOptions {
    /// The default of [`window_bytes`](LoadOptions::window_bytes): 16 MiB.
    pub const WINDOW_BYTES: u64 = 16 << 20;
    /// The default of [`piece_bytes`](LoadOptions::piece_bytes): 4 MiB, which a disk reads with
    /// several requests at a time.
    pub const PIECE_BYTES: u64 = 4 << 20;
    /// The largest number of [`workers`](LoadOptions::workers).
    pub const MAX_WORKERS: usize = 1024;

    /// Makes the default options.
    #[must_use]
    pub fn new() -> LoadOptions {
        LoadOptions::default()
    }

    /// Sets the backend by which files are read.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> LoadOptions {
        self.backend = backend;
        self
    }

    /// Sets the length of a window in bytes.
    #[must_use]
    pub fn window_bytes(mut self, bytes: u64) -> LoadOptions {
        self.window_bytes = bytes;
        self
    }

    /// Sets the largest number of bytes of one read.
    #[must_use]
    pub fn piece_bytes(mut self, bytes: u64) -> LoadOptions {
        self.piece_bytes = bytes;
        self
    }

    /// Sets the number of threads of each rank that read.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> LoadOptions {
        self.workers = workers;
        self
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`LoadError::Option`].
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let what = match self {
            LoadOptions { window_bytes, .. } if !window_bytes.is_power_of_two() || *window_bytes < 4096 => {
                format!("invalid window of {window_bytes} bytes: expected a power of two of at least 4096")
            }
            LoadOptions { piece_bytes, .. } if !piece_bytes.is_multiple_of(4096) || *piece_bytes == 0 => {
                format!("invalid piece of {piece_bytes} bytes: expected a multiple of 4096")
            }
            LoadOptions { workers, .. } if *workers > LoadOptions::MAX_WORKERS => {
                let most = LoadOptions::MAX_WORKERS;
                format!("invalid number of workers {workers}: expected at most {most}")
            }
            _ => return Ok(()),
        };
        Err(LoadError::Option { what })
    }

    /// Returns the number of threads that read in each of `ranks` ranks of a host.
    pub(super) fn workers_of(&self, ranks: usize) -> usize {
        match self.workers {
            0 => (available_parallelism().map_or(1, usize::from) / ranks.max(1)).clamp(1, 16),
            workers => workers,
        }
    }

    /// Returns the number of bytes of a buffer that the files of `table` fill.
    ///
    /// # Errors
    /// [`LoadError::Option`] for options that no load can have.
    pub fn buffer_bytes(&self, table: &TensorTable) -> Result<u64, LoadError> {
        self.check()?;
        let root = LoadRoot::new(table, table.encode().len() as u64, self.window_bytes);
        Ok(root.block_bytes() + root.alignment() + ROOT_BYTES)
    }
}
