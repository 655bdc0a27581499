//! The files that are measured.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hostbuf_staging::{Backend, File, FileOptions, cached_pages_in, drop_cached_pages, is_in_memory};

use super::bench_error::BenchError;

/// A part of a file that one transfer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilePart {
    /// The number of the file.
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A file that is measured.
#[derive(Debug)]
pub(super) struct MeasuredFile {
    pub(super) path: PathBuf,
    /// The length in bytes.
    pub(super) bytes: u64,
    /// The number of bytes at its beginning that are read.
    pub(super) read: u64,
    /// The descriptor for questions about the page cache.
    file: fs::File,
}

/// The files that are measured. They are opened for reading only.
#[derive(Debug)]
pub(super) struct MeasuredFiles(pub(super) Vec<MeasuredFile>);

impl MeasuredFiles {
    /// Opens the files. Of all files together, at most the first `limit` bytes are read.
    ///
    /// # Errors
    /// [`BenchError::File`], and [`BenchError::Unsuitable`] for what is not a file with bytes.
    pub(super) fn open(paths: &[PathBuf], limit: u64) -> Result<MeasuredFiles, BenchError> {
        let mut left = limit;
        let mut files = Vec::new();
        for path in paths {
            let (file, bytes) = open(path)?;
            let read = bytes.min(left);
            left -= read;
            if read > 0 {
                files.push(MeasuredFile { path: path.clone(), bytes, read, file });
            }
        }
        Ok(MeasuredFiles(files))
    }

    /// Returns the number of bytes that are read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.0.iter().map(|file| file.read).sum()
    }

    /// Divides what is read into parts of at most `largest` bytes.
    pub(super) fn parts(&self, largest: u64) -> Vec<FilePart> {
        let of_file = |(number, file): (usize, &MeasuredFile)| {
            let offsets = (0..file.read).step_by(largest as usize);
            let part =
                move |offset, read: u64| FilePart { file: number, offset, bytes: largest.min(read - offset) };
            let read = file.read;
            offsets.map(move |offset| part(offset, read))
        };
        self.0.iter().enumerate().flat_map(of_file).collect()
    }

    /// Opens the files for one backend. The inner error is the reason why a file cannot be read by
    /// it.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub(super) fn with_backend(&self, backend: Backend) -> Result<Result<Vec<File>, String>, BenchError> {
        let mut opened = Vec::new();
        for MeasuredFile { path, .. } in &self.0 {
            match FileOptions::new().backend(backend).open(path) {
                Ok(file) => opened.push(file),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    let (text, prefix) = (error.to_string(), format!("{}: ", path.display()));
                    return Ok(Err(text.strip_prefix(&prefix).unwrap_or(&text).to_owned()));
                }
                Err(source) => return Err(BenchError::File { doing: "opening", path: path.clone(), source }),
            }
        }
        Ok(Ok(opened))
    }

    /// Drops the files from the page cache.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub(super) fn drop_cached(&self) -> Result<(), BenchError> {
        self.0.iter().try_for_each(|MeasuredFile { path, file, .. }| {
            let doing = "dropping from the page cache";
            drop_cached_pages(file).map_err(|source| BenchError::File { doing, path: path.clone(), source })
        })
    }

    /// Returns the share of what is read that is in the page cache, in percent. `None` if the
    /// kernel does not report it.
    pub(super) fn cached_percent(&self) -> Option<u64> {
        let (mut cached, mut pages) = (0, 0);
        for MeasuredFile { file, read, .. } in &self.0 {
            let found = cached_pages_in(file, 0..*read).ok()?;
            cached += found.cached.min(found.pages);
            pages += found.pages;
        }
        Some(cached * 100 / pages.max(1))
    }

    /// Returns whether a file is in a file system without a disk.
    pub(super) fn are_in_memory(&self) -> bool {
        // A file system that the kernel does not name has a disk.
        self.0.iter().any(|measured| is_in_memory(&measured.file).unwrap_or(false))
    }
}

/// Opens a file for reading, and returns its length.
fn open(path: &Path) -> Result<(fs::File, u64), BenchError> {
    let failed = |source| BenchError::File { doing: "opening", path: path.to_owned(), source };
    let unsuitable = |why| Err(BenchError::Unsuitable { path: path.to_owned(), why });
    // Before it is opened, since that would wait for the writer of a pipe.
    let state = fs::metadata(path).map_err(failed)?;
    if state.is_dir() {
        return unsuitable("is a folder: name files in it");
    }
    if !state.is_file() {
        return unsuitable("is not a regular file: name a file on the disk to be measured");
    }
    if state.len() == 0 {
        return unsuitable("is empty: name a file of some GiB, which takes long enough to be measured");
    }
    let file = fs::File::open(path).map_err(failed)?;
    Ok((file, state.len()))
}
