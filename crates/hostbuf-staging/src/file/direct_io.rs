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
        let stated = StatedAlignment::of(&file).map_err(|error| format!("statx: {error}"))?;
        Ok(DirectFile { file, alignment: usable_alignment(stated)? })
    }
}

/// The bit of `statx(2)` for the alignment of direct I/O.
const STATX_DIOALIGN: u32 = 0x2000;

/// The alignment of direct I/O that the kernel states for a file, in bytes. Both are 0 if the file
/// system has no direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StatedAlignment {
    /// The alignment of addresses.
    memory: u32,
    /// The alignment of offsets and lengths.
    offset: u32,
}

impl StatedAlignment {
    /// Returns what the kernel states, from Linux 6.1 on. `None` if it states nothing.
    ///
    /// # Errors
    /// As `statx(2)`.
    fn of(file: &File) -> io::Result<Option<StatedAlignment>> {
        let stat = statx(file)?;
        let is_stated = stat.stx_mask & STATX_DIOALIGN != 0;
        let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
        Ok(is_stated.then_some(StatedAlignment { memory, offset }))
    }
}

/// Returns one alignment of addresses, offsets and lengths that meets those that the kernel states.
///
/// # Errors
/// The reason why the file cannot be read bypassing the page cache.
fn usable_alignment(stated: Option<StatedAlignment>) -> Result<u64, String> {
    let Some(StatedAlignment { memory, offset }) = stated else { return Ok(USUAL_ALIGNMENT) };
    match u64::from(memory.max(offset)) {
        0 => Err("its file system has no direct I/O".to_owned()),
        alignment if alignment <= USUAL_ALIGNMENT => Ok(alignment),
        alignment => Err(format!("O_DIRECT needs an alignment of {alignment} bytes there")),
    }
}

/// Asks the kernel for the alignment of direct I/O.
///
/// # Errors
/// As `statx(2)`.
fn statx(file: &File) -> io::Result<libc::statx> {
    // SAFETY: the structure contains numbers only.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is empty, and the kernel writes to a local variable.
    let failed = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, &raw mut stat)
    } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(stat) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tests::DiskFile;
    use crate::{ReadAt, WriteAt};

    fn usable(memory: u32, offset: u32) -> Result<u64, String> {
        usable_alignment(Some(StatedAlignment { memory, offset }))
    }

    #[test]
    fn the_alignment_is_the_larger_one_of_those_stated() {
        assert_eq!(usable(512, 512), Ok(512));
        assert_eq!(usable(4, 512), Ok(512));
        assert_eq!(usable(4096, 512), Ok(4096));
        assert_eq!(usable(4096, 4096), Ok(4096));
        assert_eq!(usable_alignment(None), Ok(4096), "before Linux 6.1");
    }

    #[test]
    fn an_alignment_that_slots_do_not_have_is_refused() {
        for (memory, offset) in [(8192, 512), (512, 8192), (65536, 65536)] {
            let why = usable(memory, offset).unwrap_err();
            assert!(why.contains(&format!("alignment of {} bytes", memory.max(offset))), "{why}");
        }
        assert!(usable(0, 0).unwrap_err().contains("no direct I/O"));
    }

    #[test]
    fn a_file_has_the_alignment_that_the_kernel_states() {
        let disk = DiskFile::new("alignment", &[1; 8192]);
        let Some(file) = disk.direct() else { return };
        let stat = statx(&File::open(&disk.0).unwrap()).unwrap();
        let stated = (stat.stx_mask & STATX_DIOALIGN, stat.stx_dio_mem_align, stat.stx_dio_offset_align);
        println!("{stated:?}");
        let expected = match stated {
            (0, ..) => 4096,
            (_, memory, offset) => u64::from(memory.max(offset)),
        };
        assert_eq!((ReadAt::alignment(&file), WriteAt::alignment(&file)), (expected, expected));
    }
}
