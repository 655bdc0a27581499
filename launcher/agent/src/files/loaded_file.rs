//! The memory file that a program finds in place of a file.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hostbuf::segment::{FILES_NAME, file_name};
use hostbuf::{Error, Result};
use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::placement::FilePlan;
use hostbuf_memory::populate::{self, PageRequest, Workers};
use hostbuf_memory::{FileMapping, MappingRefused, Pages, Seals};
use hostbuf_os::Bytes;
use nix::sys::stat::{Mode, fchmod};

/// The size of the transparent huge pages of memory files.
pub(super) const HUGE_PAGE: u64 = 2 << 20;
/// The largest number of bytes of a file's name that its memory file has in its name. The kernel
/// allows 249 bytes in all.
const MAX_NAME: usize = 190;

/// The memory file that a program finds in place of a file.
#[derive(Debug)]
pub(super) struct LoadedFile {
    file: OwnedFd,
    bytes: u64,
}

impl LoadedFile {
    /// Makes a memory file of exactly `bytes` bytes without pages, for a file with this name.
    ///
    /// # Errors
    /// As [`memfd::create`], with the remedy for limits.
    pub(super) fn create(job: u128, name: &OsStr, bytes: u64) -> Result<LoadedFile> {
        let mut shown: String = name.to_string_lossy().chars().filter(|c| !c.is_control()).collect();
        while shown.len() > MAX_NAME {
            shown.pop();
        }
        let name = file_name(job, &format!("{FILES_NAME}{shown}"));
        let file = memfd::create(&name, bytes, Backing::Shmem).map_err(|source| {
            let remedy = match source.raw_os_error() {
                Some(libc::EFBIG) => " (raise `ulimit -f`)",
                Some(libc::EMFILE) => " (raise `ulimit -n`, or load fewer files)",
                _ => "",
            };
            Error::Os { doing: format!("creating a memory file of {bytes} bytes{remedy}"), source }
        })?;
        Ok(LoadedFile { file, bytes })
    }

    /// Allocates all pages, huge ones where the kernel has them. Returns the number of bytes on
    /// huge pages.
    ///
    /// # Errors
    /// As [`populate::populate`].
    pub(super) fn populate(&self, workers: Workers, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        if self.bytes == 0 {
            return Ok(0);
        }
        let pages = if self.bytes < HUGE_PAGE { Pages::Small } else { Pages::Transparent };
        let plan = FilePlan::unplaced(self.bytes);
        let request = PageRequest::new(&plan, pages);
        Ok(populate::populate_unplaced(self.file.as_fd(), request, workers, progress)?)
    }

    /// Maps the file for writing. It has at least one byte.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub(super) fn map(&self) -> Result<FileMapping> {
        FileMapping::new(self.file.as_fd(), 0, self.bytes, HUGE_PAGE as usize).map_err(|refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            let doing = format!("mapping a memory file of {} (raise `ulimit -v`)", Bytes(self.bytes));
            Error::Os { doing, source: io::Error::from_raw_os_error(errno) }
        })
    }

    /// Makes the bytes final: no process can change them, and only this user can read them.
    ///
    /// # Errors
    /// As `fchmod(2)` and `fcntl(F_ADD_SEALS)`.
    pub(super) fn seal(self) -> Result<OwnedFd> {
        let os = |doing: &'static str| move |source| Error::Os { doing: doing.into(), source };
        fchmod(&self.file, Mode::S_IRUSR).map_err(io::Error::from).map_err(os("chmod of a memory file"))?;
        memfd::seal(self.file.as_fd(), Seals::WRITE | Seals::SEAL).map_err(os("sealing a memory file"))?;
        Ok(self.file)
    }
}

impl AsFd for LoadedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
