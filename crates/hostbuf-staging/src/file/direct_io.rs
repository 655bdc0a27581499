//! Reads and writes that bypass the page cache.

#![allow(unsafe_code, reason = "a system call that writes to a structure")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The alignment of reads and writes that bypass the page cache if the kernel does not state it,
/// and the largest one that is used.
const USUAL_ALIGNMENT: u64 = 4096;

/// A descriptor for reads and writes that bypass the page cache.
#[derive(Debug)]
pub(super) struct DirectFile {
    pub(super) file: File,
    /// The alignment of offsets, lengths and addresses in bytes.
    pub(super) alignment: u64,
}

impl DirectFile {
    /// Opens a file with `O_DIRECT`.
    ///
    /// # Errors
    /// The reason why the file cannot be read bypassing the page cache.
    pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<DirectFile, String> {
        let mut options = options.clone();
        let opened = options.create(false).truncate(false).custom_flags(libc::O_DIRECT).open(path);
        let file = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => "its file system refuses O_DIRECT".to_owned(),
            _ => format!("opening it with O_DIRECT: {error}"),
        })?;
        match stated_alignment(&file) {
            Ok(Some(alignment)) if alignment <= USUAL_ALIGNMENT => Ok(DirectFile { file, alignment }),
            Ok(Some(alignment)) => Err(format!("O_DIRECT needs an alignment of {alignment} bytes there")),
            Ok(None) => Ok(DirectFile { file, alignment: USUAL_ALIGNMENT }),
            Err(error) => Err(format!("statx: {error}")),
        }
    }
}

/// Returns the alignment that the kernel states, from Linux 6.1 on. `None` if it does not.
///
/// # Errors
/// As `statx(2)`; [`Unsupported`](io::ErrorKind::Unsupported) if the file system has no direct I/O.
fn stated_alignment(file: &File) -> io::Result<Option<u64>> {
    const STATX_DIOALIGN: u32 = 0x2000;
    // SAFETY: the structure contains numbers only.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is empty, and the kernel writes to a local variable.
    let failed = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, &raw mut stat)
    } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    if stat.stx_mask & STATX_DIOALIGN == 0 {
        return Ok(None);
    }
    match stat.stx_dio_mem_align.max(stat.stx_dio_offset_align) {
        0 => Err(io::ErrorKind::Unsupported.into()),
        alignment => Ok(Some(u64::from(alignment))),
    }
}
