//! A file for transfers.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use super::backend::{Backend, BackendChoice};
use super::direct_io::DirectFile;
use super::page_cache::cached_pages;
use crate::read_write_at::{ReadAt, WriteAt};

/// The options with which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOptions {
    /// The way in which the file is read and written.
    pub backend: Backend,
    /// True if the file is written too. It is made if it does not exist.
    pub write: bool,
}

impl FileOptions {
    /// Makes the default options: reading only, by [`Backend::Auto`].
    #[must_use]
    pub fn new() -> FileOptions {
        FileOptions::default()
    }

    /// Sets the way in which the file is read and written.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> FileOptions {
        self.backend = backend;
        self
    }

    /// Sets whether the file is written.
    #[must_use]
    pub fn write(mut self, write: bool) -> FileOptions {
        self.write = write;
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As `open(2)`, with the path; [`Unsupported`](io::ErrorKind::Unsupported) if
    /// [`Backend::Direct`] is requested for a file without direct I/O.
    pub fn open(self, path: impl AsRef<Path>) -> io::Result<File> {
        File::open_with(path.as_ref(), self)
    }
}

/// A file for transfers.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    buffered: std::fs::File,
    direct: Option<DirectFile>,
    choice: BackendChoice,
}

impl File {
    /// Opens a file for reading, by [`Backend::Auto`].
    ///
    /// # Errors
    /// As `open(2)`, with the path.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        FileOptions::new().open(path)
    }

    fn open_with(path: &Path, options: FileOptions) -> io::Result<File> {
        let with_path =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut open = OpenOptions::new();
        open.read(true).write(options.write).create(options.write).truncate(false);
        let buffered = open.open(path).map_err(with_path)?;
        let direct = match options.backend {
            Backend::Posix => Err("as requested".to_owned()),
            Backend::Direct => match DirectFile::open(path, &open) {
                Ok(direct) => Ok((direct, "as requested".to_owned())),
                Err(why) => return Err(with_path(io::Error::new(io::ErrorKind::Unsupported, why))),
            },
            Backend::Auto => choose(path, &buffered, &open),
        };
        let (direct, backend, why) = match direct {
            Ok((direct, why)) => (Some(direct), Backend::Direct, why),
            Err(why) => (None, Backend::Posix, why),
        };
        Ok(File { path: path.to_owned(), buffered, direct, choice: BackendChoice { backend, why } })
    }

    /// Returns the way in which the file is read and written, and the reason.
    #[must_use]
    pub fn backend(&self) -> &BackendChoice {
        &self.choice
    }

    /// Returns the path with which the file was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file, for calls of the standard library.
    #[must_use]
    pub fn as_std(&self) -> &std::fs::File {
        &self.buffered
    }

    /// Returns the number of bytes.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.buffered.metadata()?.len())
    }

    /// Writes what the page cache has of the file to the disk, and waits for it.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn sync(&self) -> io::Result<()> {
        self.buffered.sync_all()
    }
}

/// Returns a descriptor past the page cache with the reason, or the reason for the page cache.
fn choose(path: &Path, file: &std::fs::File, open: &OpenOptions) -> Result<(DirectFile, String), String> {
    if fstatfs(file).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC) {
        return Err("the file is in memory (tmpfs)".to_owned());
    }
    let cached = cached_pages(file).map(|pages| (pages.cached * 100 / pages.pages.max(1), pages.pages));
    match cached {
        Ok((_, 0)) => Err("the file is empty".to_owned()),
        Ok((percent, _)) if percent >= 50 => Err(format!("{percent} % of it is in the page cache")),
        Ok((percent, _)) => {
            let why = format!("{percent} % of it is in the page cache");
            DirectFile::open(path, open).map(|direct| (direct, why))
        }
        Err(error) => Err(format!("the kernel does not tell what is in the page cache ({error})")),
    }
}

impl ReadAt for File {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn alignment(&self) -> u64 {
        self.direct.as_ref().map_or(1, |direct| direct.alignment)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.direct {
            Some(direct) if is_aligned(into, offset, direct.alignment) => direct.file.read_at(into, offset),
            // The rest of a read that has ended in the middle of a block.
            _ => self.buffered.read_at(into, offset),
        }
    }
}

impl WriteAt for File {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn alignment(&self) -> u64 {
        self.direct.as_ref().map_or(1, |direct| direct.alignment)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let Some(direct) = &self.direct else { return self.buffered.write_at(from, offset) };
        let before = (offset.next_multiple_of(direct.alignment) - offset) as usize;
        let blocks = (from.len() as u64 / direct.alignment * direct.alignment) as usize;
        match before {
            // All whole blocks. The part behind them comes next.
            0 if blocks > 0 && is_aligned(&from[..blocks], offset, direct.alignment) => {
                direct.file.write_at(&from[..blocks], offset)
            }
            0 => self.buffered.write_at(from, offset),
            // The part before the first whole block.
            _ => self.buffered.write_at(&from[..before.min(from.len())], offset),
        }
    }
}

/// Returns whether memory and its place in a file are aligned.
fn is_aligned(memory: &[u8], offset: u64, alignment: u64) -> bool {
    [memory.as_ptr() as u64, memory.len() as u64, offset].iter().all(|number| number % alignment == 0)
}
