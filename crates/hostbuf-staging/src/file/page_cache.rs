//! The pages of a file in the page cache.

#![allow(unsafe_code, reason = "a system call that the C library does not offer")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// The number of pages of a file, in pages of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedPages {
    /// The number of pages in the page cache.
    pub cached: u64,
    /// The number of those that are not written to the disk yet.
    pub dirty: u64,
    /// The number of pages of the file.
    pub pages: u64,
}

/// The arguments and results of `cachestat(2)`.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

#[repr(C)]
struct CacheStatRange {
    offset: u64,
    /// 0 means the rest of the file.
    length: u64,
}

/// Returns how much of a file is in the page cache.
///
/// # Errors
/// [`Unsupported`](io::ErrorKind::Unsupported) before Linux 6.5, and for files without a page
/// cache; otherwise as `cachestat(2)`.
#[doc(alias = "get_page_cache_info")]
pub fn cached_pages(file: &File) -> io::Result<CachedPages> {
    cached_pages_in(file, 0..file.metadata()?.len())
}

/// Returns how much of a range of bytes of a file is in the page cache. `pages` counts the pages
/// from the first to the last byte of the range.
///
/// # Errors
/// As [`cached_pages`].
pub fn cached_pages_in(file: &File, range: Range<u64>) -> io::Result<CachedPages> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or(4096) as u64;
    let pages = range.end.div_ceil(page).saturating_sub(range.start / page);
    // A length of 0 would mean the rest of the file.
    let range = CacheStatRange {
        offset: range.start,
        length: range.end.saturating_sub(range.start).max(u64::from(range.start > 0)),
    };
    let mut stat = CacheStat::default();
    // SAFETY: both are local variables with the kernel's layout.
    let failed = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0 as libc::c_uint)
    } != 0;
    if failed {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => io::Error::new(io::ErrorKind::Unsupported, error),
            _ => error,
        });
    }
    Ok(CachedPages { cached: stat.cached, dirty: stat.dirty, pages })
}

/// Drops the pages of a file from the page cache, after it has written them. Pages that a process
/// maps stay.
///
/// # Errors
/// As `fdatasync(2)` and `posix_fadvise(2)`.
#[doc(alias = "drop_file_page_cache")]
pub fn drop_cached_pages(file: &File) -> io::Result<()> {
    file.sync_data()?;
    Ok(posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
}
