//! The selection of the backend by which a file is read and written.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::backend::Backend;
use super::direct_io::DirectFile;
use super::file_system::{FileSystem, FileSystemKind};
use super::mapped_file::MappedFile;
use super::mapped_writes::MappedWrites;
use super::page_cache::cached_share;
use super::uring::{self, UringFile};

/// The state that a backend needs beside the descriptor that goes through the page cache.
#[derive(Debug)]
pub(super) enum FileAccess {
    Buffered,
    Direct(DirectFile),
    Uring(UringFile),
    Mapped(MappedFile),
}

/// The selected backend.
#[derive(Debug)]
pub(super) struct BackendSelection {
    pub(super) access: FileAccess,
    pub(super) writes: WriteAccess,
    pub(super) why: String,
}

/// The way by which a file is written.
#[derive(Debug)]
pub(super) enum WriteAccess {
    /// The backend reads and writes alike.
    Backend,
    /// Through the page cache.
    Buffered,
    /// Through a mapping.
    Mapped(MappedWrites),
}

impl BackendSelection {
    fn new(access: FileAccess, why: impl Into<String>) -> BackendSelection {
        BackendSelection { access, writes: WriteAccess::Backend, why: why.into() }
    }

    /// Selects the backend for an open file; `open` are the options with which it was opened.
    ///
    /// # Errors
    /// The reason why the file cannot be read by the requested backend.
    pub(super) fn of(
        backend: Backend,
        path: &Path,
        file: &File,
        open: &OpenOptions,
    ) -> Result<BackendSelection, String> {
        const REQUESTED: &str = "as requested";
        match backend {
            Backend::Auto => Ok(automatic(FileSystem::of(file), path, file, open)),
            Backend::Posix => Ok(BackendSelection::new(FileAccess::Buffered, REQUESTED)),
            Backend::Direct => DirectFile::open(path, open)
                .map(|direct| BackendSelection::new(FileAccess::Direct(direct), REQUESTED)),
            Backend::Uring => {
                uring::probe()?;
                let direct = refuse_memory(FileSystem::of(file)).and_then(|()| DirectFile::open(path, open));
                Ok(match direct {
                    Ok(direct) => {
                        BackendSelection::new(FileAccess::Uring(UringFile::new(Some(direct))), REQUESTED)
                    }
                    Err(why) => {
                        let why = format!("{REQUESTED}, through the page cache: {why}");
                        BackendSelection::new(FileAccess::Uring(UringFile::new(None)), why)
                    }
                })
            }
            Backend::Mmap => MappedFile::new(file).map(|mapped| {
                let mut selection = BackendSelection::new(FileAccess::Mapped(mapped), REQUESTED);
                selection.writes = WriteAccess::Mapped(MappedWrites::default());
                selection
            }),
        }
    }

    /// Returns the backend, which is not [`Backend::Auto`].
    pub(super) fn backend(&self) -> Backend {
        match &self.access {
            FileAccess::Buffered => Backend::Posix,
            FileAccess::Direct(_) => Backend::Direct,
            FileAccess::Uring(uring) if uring.replaced().is_some() => Backend::Direct,
            FileAccess::Uring(_) => Backend::Uring,
            FileAccess::Mapped(_) => Backend::Mmap,
        }
    }
}

/// Selects the backend that is fastest: from the page cache if the file is there, otherwise from
/// the disk, and by io_uring if there is one.
fn automatic(system: FileSystem, path: &Path, file: &File, open: &OpenOptions) -> BackendSelection {
    let selected = residency(system, file).and_then(|why| Ok((DirectFile::open(path, open)?, why)));
    let (direct, why) = match selected {
        Ok(selected) => selected,
        Err(why) => return in_page_cache(system, why),
    };
    let mut selection = match uring::probe() {
        Ok(()) => BackendSelection::new(FileAccess::Uring(UringFile::new(Some(direct)).replaceable()), why),
        Err(refusal) => BackendSelection::new(FileAccess::Direct(direct), format!("{why}, and {refusal}")),
    };
    if system.kind == FileSystemKind::Network {
        // Direct writes to Lustre took 2 to 5 times as long as buffered ones.
        selection.writes = WriteAccess::Buffered;
        selection.why += &format!("; writes to {} go through the page cache", system.name);
    }
    selection
}

/// Selects the page cache.
fn in_page_cache(system: FileSystem, why: String) -> BackendSelection {
    let mut selection = BackendSelection::new(FileAccess::Buffered, why);
    if system.is_tmpfs() {
        selection.writes = WriteAccess::Mapped(MappedWrites::default());
        selection.why += "; writes copy through a mapping";
    }
    selection
}

/// Refuses a file system in memory, which has no disk.
///
/// # Errors
/// The reason for the page cache.
fn refuse_memory(system: FileSystem) -> Result<(), String> {
    match system.kind {
        FileSystemKind::Memory => Err(format!("the file is in memory ({})", system.name)),
        FileSystemKind::Network | FileSystemKind::Local => Ok(()),
    }
}

/// Returns the reason to read a file from its disk.
///
/// # Errors
/// The reason to read it through the page cache.
fn residency(system: FileSystem, file: &File) -> Result<String, String> {
    refuse_memory(system)?;
    match cached_share(file) {
        Ok(share) if share.pages == 0 => Err("the file is empty".to_owned()),
        Ok(share) if share.percent() >= 50 => Err(share.to_string()),
        Ok(share) => Ok(share.to_string()),
        Err(error) => Err(format!("the kernel does not report what is in the page cache ({error})")),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::file::page_cache::drop_cached_pages;
    use crate::tests::DiskFile;

    #[test]
    fn files_of_a_network_are_written_through_the_page_cache() {
        let disk = DiskFile::new("network", &[1; 1 << 20]);
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).open(&disk.0).unwrap();
        drop_cached_pages(&file).unwrap();
        let network = FileSystem { name: "NFS", kind: FileSystemKind::Network };
        let selection = automatic(network, &disk.0, &file, &open);
        if matches!(selection.access, FileAccess::Buffered) {
            eprintln!("skipped: {}", selection.why);
            return;
        }
        assert!(matches!(selection.writes, WriteAccess::Buffered));
        assert!(selection.why.ends_with("; writes to NFS go through the page cache"), "{}", selection.why);
        let local = FileSystem { name: "", kind: FileSystemKind::Local };
        let selection = automatic(local, &disk.0, &file, &open);
        assert!(matches!(selection.writes, WriteAccess::Backend));
        let memory = FileSystem { name: "ramfs", kind: FileSystemKind::Memory };
        let selection = automatic(memory, &disk.0, &file, &open);
        assert_eq!((selection.backend(), &*selection.why), (Backend::Posix, "the file is in memory (ramfs)"));
        assert!(matches!(selection.writes, WriteAccess::Backend));
    }
}
