//! The descriptors of a file, and the path of each byte.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::backend::{Backend, BackendChoice};
use super::backend_selection::{BackendSelection, FileAccess, WriteAccess};
use super::cached_read::cached_read;
use super::direct_io::DirectFile;
use super::file_system::{FileSystem, FileSystemKind};
use super::non_temporal;
use super::open_error::OpenError;
use crate::read_write_at::{ReadAt, WriteAt};

/// A file with its descriptors, which its handle and its transfers share.
#[derive(Debug)]
pub(super) struct FileDescriptors {
    path: PathBuf,
    buffered: std::fs::File,
    selection: BackendSelection,
    /// True for a file system in memory, which knows no reads that do not wait.
    is_in_memory: bool,
}

impl FileDescriptors {
    /// Opens a file.
    ///
    /// # Errors
    /// See [`FileOptions::open`](super::FileOptions::open).
    pub(super) fn open(path: &Path, backend: Backend, is_written: bool) -> io::Result<FileDescriptors> {
        let with_path = |source| io::Error::from(OpenError { path: path.to_owned(), source });
        refuse_other_types(path).map_err(with_path)?;
        let mut open = OpenOptions::new();
        open.read(true).write(is_written).create(is_written).truncate(false);
        let buffered = open.open(path).map_err(with_path)?;
        let selection = BackendSelection::of(backend, path, &buffered, &open)
            .map_err(|why| with_path(io::Error::new(io::ErrorKind::Unsupported, why)))?;
        let is_in_memory = FileSystem::of(&buffered).kind == FileSystemKind::Memory;
        Ok(FileDescriptors { path: path.to_owned(), buffered, selection, is_in_memory })
    }

    /// Returns the backend by which the file is read and written, and the reason.
    pub(super) fn backend(&self) -> BackendChoice {
        let mut why = self.selection.why.clone();
        if let FileAccess::Uring(uring) = &self.selection.access {
            if let Some(refusal) = uring.replaced() {
                why += &format!(", and {refusal}");
            } else if let Some(refusal) = uring.refusal() {
                why += &format!("; the slots of a ring are not fixed buffers: {refusal}");
            }
        }
        BackendChoice { backend: self.selection.backend(), why }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn buffered(&self) -> &std::fs::File {
        &self.buffered
    }

    /// Returns the descriptor that bypasses the page cache.
    fn direct(&self) -> Option<&DirectFile> {
        match &self.selection.access {
            FileAccess::Direct(direct) => Some(direct),
            FileAccess::Uring(uring) => uring.direct(),
            FileAccess::Buffered | FileAccess::Mapped(_) => None,
        }
    }

    /// Returns the descriptor that bypasses the page cache, if writes use it.
    fn directly_written(&self) -> Option<&DirectFile> {
        self.direct().filter(|_| matches!(self.selection.writes, WriteAccess::Backend))
    }

    /// Reads bytes into memory that is not accessed soon.
    pub(super) fn read_non_temporal_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.selection.access {
            FileAccess::Buffered => {
                let cached = |block: &mut [u8], at| self.read_without_waiting(block, at);
                // A disk gets one long read, by whose length the kernel reads ahead.
                non_temporal::read_at(into, offset, cached).or_else(|_| self.buffered.read_at(into, offset))
            }
            FileAccess::Direct(_) | FileAccess::Uring(_) | FileAccess::Mapped(_) => {
                self.read_at(into, offset)
            }
        }
    }

    /// Writes whole blocks, bypassing the page cache, or any bytes if writes go through it.
    fn write_blocks(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        match (&self.selection.writes, &self.selection.access) {
            (WriteAccess::Mapped(mapped), _) => mapped.write_at(&self.buffered, from, offset),
            (WriteAccess::Backend, FileAccess::Direct(direct)) => direct.file.write_at(from, offset),
            (WriteAccess::Backend, FileAccess::Uring(uring)) => uring.write_at(&self.buffered, from, offset),
            _ => self.buffered.write_at(from, offset),
        }
    }

    /// Writes a part of a block beside blocks that are written bypassing the page cache.
    fn write_edge(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        match &self.selection.access {
            FileAccess::Uring(uring) => uring.write_edge(&self.buffered, from, offset),
            _ => self.buffered.write_at(from, offset),
        }
    }
}

impl ReadAt for FileDescriptors {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn alignment(&self) -> u64 {
        self.direct().map_or(1, |direct| direct.alignment)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.direct().is_some_and(|direct| !is_aligned(into, offset, direct.alignment)) {
            // The rest of a read that has ended in the middle of a block.
            return self.buffered.read_at(into, offset);
        }
        match &self.selection.access {
            FileAccess::Buffered => self.buffered.read_at(into, offset),
            FileAccess::Direct(direct) => direct.file.read_at(into, offset),
            FileAccess::Uring(uring) => uring.read_at(&self.buffered, into, offset),
            FileAccess::Mapped(mapped) => mapped.read_at(&self.buffered, into, offset),
        }
    }

    fn read_without_waiting(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.selection.access {
            FileAccess::Buffered if self.is_in_memory => self.buffered.read_at(into, offset),
            FileAccess::Buffered => cached_read(&self.buffered, into, offset),
            FileAccess::Direct(_) | FileAccess::Uring(_) | FileAccess::Mapped(_) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }
}

impl WriteAt for FileDescriptors {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn alignment(&self) -> u64 {
        self.directly_written().map_or(1, |direct| direct.alignment)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let Some(direct) = self.directly_written() else { return self.write_blocks(from, offset) };
        let before = (offset.next_multiple_of(direct.alignment) - offset) as usize;
        let blocks = (from.len() as u64 / direct.alignment * direct.alignment) as usize;
        match before {
            // All whole blocks. The part after them comes next.
            0 if blocks > 0 && is_aligned(&from[..blocks], offset, direct.alignment) => {
                self.write_blocks(&from[..blocks], offset)
            }
            0 => self.write_edge(from, offset),
            // The part before the first whole block.
            _ => self.write_edge(&from[..before.min(from.len())], offset),
        }
    }
}

/// Refuses what has no bytes at offsets.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for a FIFO, and EISDIR for a folder.
fn refuse_other_types(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path).map(|metadata| metadata.file_type()) {
        // Its open waits for its other end.
        Ok(kind) if kind.is_fifo() => {
            let why = "it is a FIFO, whose bytes have no offsets: copy them to a file first";
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        Ok(kind) if kind.is_dir() => Err(Errno::EISDIR.into()),
        // The open has the error of a path that leads nowhere.
        _ => Ok(()),
    }
}

/// Returns whether memory and its place in a file are aligned.
fn is_aligned(memory: &[u8], offset: u64, alignment: u64) -> bool {
    [memory.as_ptr() as u64, memory.len() as u64, offset].iter().all(|number| number % alignment == 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::file::page_cache::{cached_pages, drop_cached_pages};
    use crate::tests::DiskFile;

    #[test]
    fn large_reads_are_complete_with_a_cold_and_a_warm_page_cache() {
        let content: Vec<u8> = (0..(3 << 20) + 5).map(|at: u32| (at % 251) as u8).collect();
        let disk = DiskFile::new("non-temporal", &content);
        let file = FileDescriptors::open(&disk.0, Backend::Posix, false).unwrap();
        file.buffered.sync_all().unwrap();
        for cached in [0, 1 << 20, content.len()] {
            drop_cached_pages(&file.buffered).unwrap();
            file.buffered.read_exact_at(&mut vec![0; cached], 0).unwrap();
            let mut read = vec![0; content.len() + 100];
            let mut done = 0;
            loop {
                match file.read_non_temporal_at(&mut read[done..], done as u64).unwrap() {
                    0 => break,
                    bytes => done += bytes,
                }
            }
            assert_eq!(done, content.len());
            assert!(read[..done] == content, "{cached} bytes were in the page cache");
        }
        let writer = OpenOptions::new().write(true).open(&disk.0).unwrap();
        let mut unreadable = FileDescriptors::open(&disk.0, Backend::Posix, false).unwrap();
        unreadable.buffered = writer;
        let error = unreadable.read_non_temporal_at(&mut vec![0; 1 << 20], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::EBADF as i32));
    }

    #[test]
    fn buffered_writes_stay_in_the_page_cache() {
        let disk = DiskFile::new("buffered-writes", &[1; 1 << 20]);
        for backend in [Backend::Direct, Backend::Uring] {
            let mut file = match FileDescriptors::open(&disk.0, backend, true) {
                Ok(file) => file,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                    eprintln!("skipped: {error}");
                    continue;
                }
            };
            drop_cached_pages(&file.buffered).unwrap();
            if file.direct().is_none() || cached_pages(&file.buffered).is_err() {
                eprintln!("skipped: {}", file.backend());
                continue;
            }
            let aligned = vec![2u8; 3 * 4096];
            let start = aligned.as_ptr().align_offset(4096);
            let block = &aligned[start..start + 4096];
            assert_eq!(file.write_at(block, 8192).unwrap(), 4096);
            assert_eq!(cached_pages(&file.buffered).unwrap().cached, 0, "{backend} bypasses it");
            file.selection.writes = WriteAccess::Buffered;
            assert_eq!((WriteAt::alignment(&file), file.write_at(block, 8192).unwrap()), (1, 4096));
            assert!(cached_pages(&file.buffered).unwrap().cached > 0, "{backend}");
        }
    }
}
