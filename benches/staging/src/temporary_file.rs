//! Files that exist for the time of a benchmark.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A file that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryFile(PathBuf);

impl TemporaryFile {
    /// Creates a file, and opens it for reading and writing.
    ///
    /// # Errors
    /// As `open(2)`, including if a file with this path exists.
    pub(crate) fn create(path: PathBuf) -> io::Result<(TemporaryFile, File)> {
        let file = File::create_new(&path)?;
        Ok((TemporaryFile(path), file))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            eprintln!("hostbuf-bench-staging: {}: {error}", self.0.display());
        }
    }
}
