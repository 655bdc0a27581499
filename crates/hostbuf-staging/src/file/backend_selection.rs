//! The selection of the way in which a file is read and written.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::backend::Backend;
use super::direct_io::DirectFile;
use super::file_system::{FileSystem, FileSystemKind};
use super::mapped_file::MappedFile;
use super::page_cache::cached_pages;
use super::uring::{self, UringFile};

/// The state that a backend needs beside the descriptor that goes through the page cache.
#[derive(Debug)]
pub(super) enum FileAccess {
    Buffered,
    Direct(DirectFile),
    Uring(UringFile),
    Mapped(MappedFile),
}

/// The selected way.
#[derive(Debug)]
pub(super) struct BackendSelection {
    pub(super) access: FileAccess,
    /// True if writes go through the page cache in any case.
    pub(super) has_buffered_writes: bool,
    pub(super) why: String,
}

impl BackendSelection {
    fn new(access: FileAccess, why: impl Into<String>) -> BackendSelection {
        BackendSelection { access, has_buffered_writes: false, why: why.into() }
    }

    /// Selects the way for an open file; `open` are the options with which it was opened.
    ///
    /// # Errors
    /// The reason why the file cannot be read in the requested way.
    pub(super) fn of(
        backend: Backend,
        path: &Path,
        file: &File,
        open: &OpenOptions,
    ) -> Result<BackendSelection, String> {
        const REQUESTED: &str = "as requested";
        match backend {
            Backend::Auto => Ok(automatic(path, file, open)),
            Backend::Posix => Ok(BackendSelection::new(FileAccess::Buffered, REQUESTED)),
            Backend::Direct => DirectFile::open(path, open)
                .map(|direct| BackendSelection::new(FileAccess::Direct(direct), REQUESTED)),
            Backend::Uring => {
                uring::probe()?;
                Ok(match direct_unless_in_memory(path, file, open) {
                    Ok(direct) => {
                        BackendSelection::new(FileAccess::Uring(UringFile::new(Some(direct))), REQUESTED)
                    }
                    Err(why) => {
                        let why = format!("{REQUESTED}, through the page cache: {why}");
                        BackendSelection::new(FileAccess::Uring(UringFile::new(None)), why)
                    }
                })
            }
            Backend::Mmap => MappedFile::new(file)
                .map(|mapped| BackendSelection::new(FileAccess::Mapped(mapped), REQUESTED)),
            Backend::CuFile => {
                Err("cuFile reads into memory of a GPU without a ring: open the file with CuFile".to_owned())
            }
        }
    }

    /// Returns the backend, which is not [`Backend::Auto`].
    pub(super) fn backend(&self) -> Backend {
        match self.access {
            FileAccess::Buffered => Backend::Posix,
            FileAccess::Direct(_) => Backend::Direct,
            FileAccess::Uring(_) => Backend::Uring,
            FileAccess::Mapped(_) => Backend::Mmap,
        }
    }
}

/// Selects the way that is fastest: from the page cache if the file is there, otherwise from the
/// disk, and by io_uring if there is one.
fn automatic(path: &Path, file: &File, open: &OpenOptions) -> BackendSelection {
    let selected =
        residency(file).and_then(|why| direct_unless_in_memory(path, file, open).map(|direct| (direct, why)));
    let (direct, why) = match selected {
        Ok(selected) => selected,
        Err(why) => return BackendSelection::new(FileAccess::Buffered, why),
    };
    let mut selection = match uring::probe() {
        Ok(()) => BackendSelection::new(FileAccess::Uring(UringFile::new(Some(direct))), why),
        Err(refusal) => BackendSelection::new(FileAccess::Direct(direct), format!("{why}, and {refusal}")),
    };
    let system = FileSystem::of(file);
    if system.kind == FileSystemKind::Network {
        // Direct writes to Lustre took 2 to 5 times as long as buffered ones.
        selection.has_buffered_writes = true;
        selection.why += &format!("; writes to {} go through the page cache", system.name);
    }
    selection
}

/// Opens a file past the page cache, unless its file system is in memory.
///
/// # Errors
/// The reason for the page cache.
fn direct_unless_in_memory(path: &Path, file: &File, open: &OpenOptions) -> Result<DirectFile, String> {
    let system = FileSystem::of(file);
    if system.kind == FileSystemKind::Memory {
        return Err(format!("the file is in memory ({})", system.name));
    }
    DirectFile::open(path, open)
}

/// Returns the reason to read a file from its disk.
///
/// # Errors
/// The reason to read it through the page cache.
fn residency(file: &File) -> Result<String, String> {
    let system = FileSystem::of(file);
    if system.kind == FileSystemKind::Memory {
        return Err(format!("the file is in memory ({})", system.name));
    }
    let cached = cached_pages(file).map(|pages| (pages.cached * 100 / pages.pages.max(1), pages.pages));
    match cached {
        Ok((_, 0)) => Err("the file is empty".to_owned()),
        Ok((percent, _)) if percent >= 50 => Err(format!("{percent} % of it is in the page cache")),
        Ok((percent, _)) => Ok(format!("{percent} % of it is in the page cache")),
        Err(error) => Err(format!("the kernel does not tell what is in the page cache ({error})")),
    }
}
