//! The file under a mapping, opened once more.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs, statfs};

use super::error::AdoptError;
use super::file_range::{FileRange, MemoryFileId};

/// The number of ramfs, which keeps its files in memory as tmpfs does (`linux/magic.h`).
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);
/// The beginning of the link of a file with the blocks of a pool.
const POOL_FILE: &[u8] = b"/memfd:hostbuf-pool-data";
const DESCRIPTORS: &str = "/proc/thread-self/fd";

/// A file in memory, open for reading or for both.
#[derive(Debug)]
pub(super) struct MemoryFile {
    file: File,
    /// The size of its pages, in bytes: a multiple of this can be mapped.
    page: u64,
}

/// A file's size, and the time of the last change of its pages or of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileState {
    pub(super) size: u64,
    /// The status change time, in seconds and nanoseconds.
    pub(super) changed: (i64, i64),
}

impl MemoryFile {
    /// Opens the file that `range` shows, and proves its identity by device and inode.
    ///
    /// The candidates are the descriptors of this process, the file's name, and the kernel's link
    /// to the mapped file, which needs a capability.
    pub(super) fn open(range: &FileRange, writable: bool) -> Result<MemoryFile, AdoptError> {
        let link = map_file(range);
        let name = fs::read_link(&link).unwrap_or_default();
        let (span, shown) = (range.span, name.to_string_lossy().into_owned());
        let mut why = "no descriptor of this process refers to it".to_owned();
        let mut denied = false;
        for path in own_descriptors(range.file).chain([name.clone(), link]) {
            match open_checked(&path, range.file, writable) {
                Ok(file) => return MemoryFile::of(file, range, shown),
                Err(error) => {
                    denied |= writable && matches!(error.raw_os_error(), Some(libc::EACCES | libc::EROFS));
                    why = format!("{why}; {}: {error}", path.display());
                }
            }
        }
        if denied {
            let why = "the file may not be opened for writing".to_owned();
            return Err(AdoptError::ReadOnly { span, name: shown, why });
        }
        // The list of mappings has another device number than stat(2) for some file systems, such
        // as btrfs, none of which is in memory.
        match statfs(&name) {
            Ok(kind) if !is_in_memory(kind.filesystem_type()) => {
                Err(AdoptError::OnDisk { span, name: shown })
            }
            _ => Err(AdoptError::Unnamed { span, name: shown, why }),
        }
    }

    fn of(file: File, range: &FileRange, name: String) -> Result<MemoryFile, AdoptError> {
        let kind = fstatfs(&file).map_err(hostbuf_os::Error::of("reading the kind of a file system"))?;
        if !is_in_memory(kind.filesystem_type()) {
            return Err(AdoptError::OnDisk { span: range.span, name });
        }
        let link = fs::read_link(format!("{DESCRIPTORS}/{}", file.as_raw_fd())).unwrap_or_default();
        if link.as_os_str().as_encoded_bytes().starts_with(POOL_FILE) {
            return Err(AdoptError::PoolBlock { span: range.span });
        }
        let huge = kind.filesystem_type() == HUGETLBFS_MAGIC;
        let page = if huge { kind.block_size() as u64 } else { hostbuf_os::memory::page_size() };
        Ok(MemoryFile { file, page })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the size of the file's pages in bytes.
    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Returns whether the file consists of pages of the huge page pool.
    pub(super) fn is_huge(&self) -> bool {
        self.page > hostbuf_os::memory::page_size()
    }

    /// Returns the size and the time of the last change.
    pub(super) fn state(&self) -> Result<FileState, AdoptError> {
        let found = self.file.metadata().map_err(hostbuf_os::Error::of("reading the size of a file"))?;
        Ok(FileState { size: found.size(), changed: (found.ctime(), found.ctime_nsec()) })
    }

    /// Returns whether this process has a descriptor of the file besides `own`.
    pub(super) fn has_other_descriptor(file: MemoryFileId, own: RawFd) -> bool {
        let own = own.to_string();
        own_descriptors(file).any(|path| !path.ends_with(&own))
    }

    /// Returns whether the file has lost its last name.
    pub(super) fn is_unlinked(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() == 0)
    }
}

/// Returns the path of the kernel's link to the mapped file.
fn map_file(range: &FileRange) -> PathBuf {
    PathBuf::from(format!("/proc/self/map_files/{:x}-{:x}", range.mapping.0, range.mapping.1))
}

/// Returns the name of the file as the kernel shows it, which may be gone by now.
pub(super) fn name_of(range: &FileRange) -> String {
    fs::read_link(map_file(range)).unwrap_or_default().to_string_lossy().into_owned()
}

fn is_in_memory(kind: FsType) -> bool {
    [TMPFS_MAGIC, HUGETLBFS_MAGIC, RAMFS_MAGIC].contains(&kind)
}

fn is_file(found: &Metadata, file: MemoryFileId) -> bool {
    let device = (libc::major(found.dev()), libc::minor(found.dev()));
    found.is_file() && device == file.device && found.ino() == file.inode
}

/// Returns the paths of this thread's descriptors that refer to the file.
fn own_descriptors(file: MemoryFileId) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(DESCRIPTORS).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(move |path| fs::metadata(path).is_ok_and(|found| is_file(&found, file)))
}

/// Opens `path` if it is this file. The identity is compared before, so that no other file is
/// opened, and afterwards, since the name may have changed meanwhile.
///
/// This makes an open file description of its own: a duplicate of a descriptor would keep a lock of
/// its owner (`flock(2)`) for as long as the file stays mapped here.
fn open_checked(path: &Path, file: MemoryFileId, writable: bool) -> io::Result<File> {
    let other = || io::Error::other("it is another file");
    if !is_file(&fs::metadata(path)?, file) {
        return Err(other());
    }
    let mut options = File::options();
    let options = options.read(true).write(writable).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let opened = match options.open(path) {
        // A file of another user, whose descriptor this process was given.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) && path.starts_with(DESCRIPTORS) => {
            duplicate(path, writable).ok_or(error)?
        }
        opened => opened?,
    };
    if is_file(&opened.metadata()?, file) { Ok(opened) } else { Err(other()) }
}

/// Duplicates the descriptor with this path in [`DESCRIPTORS`], if it has the right.
fn duplicate(path: &Path, writable: bool) -> Option<File> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let copy = hostbuf_os::descriptors::duplicate(number).ok()?;
    let flags = nix::fcntl::fcntl(&copy, nix::fcntl::FcntlArg::F_GETFL).ok()?;
    let access = flags & libc::O_ACCMODE;
    let suits = access == libc::O_RDWR || (!writable && access == libc::O_RDONLY);
    suits.then(|| File::from(copy))
}
