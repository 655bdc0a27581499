//! The pages of a file in the page cache.

#![allow(unsafe_code, reason = "a system call that the C library does not offer")]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

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

/// The size in bytes of each sample of a large file, and the number of samples.
const SAMPLE: (u64, u64) = (1 << 20, 128);

/// The part of a file that is in the page cache, by samples if the file is large.
pub(super) struct CachedShare {
    /// The number of pages that were looked at.
    pub(super) pages: u64,
    cached: u64,
    is_sampled: bool,
}

impl CachedShare {
    pub(super) fn percent(&self) -> u64 {
        self.cached * 100 / self.pages.max(1)
    }
}

impl fmt::Display for CachedShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.is_sampled { "about " } else { "" };
        write!(f, "{about}{} % of it is in the page cache", self.percent())
    }
}

/// Returns how much of a file is in the page cache. The kernel looks at each page, which takes
/// milliseconds for some gigabytes, so of a large file only evenly spaced samples are looked at.
///
/// # Errors
/// As [`cached_pages`].
pub(super) fn cached_share(file: &File) -> io::Result<CachedShare> {
    let (bytes, samples) = SAMPLE;
    let length = file.metadata()?.len();
    if length <= bytes * samples {
        let CachedPages { cached, pages, .. } = cached_pages_in(file, 0..length)?;
        return Ok(CachedShare { pages, cached, is_sampled: false });
    }
    let mut share = CachedShare { pages: 0, cached: 0, is_sampled: true };
    for sample in 0..samples {
        // The last sample ends at the end of the file.
        let start = u128::from(length - bytes) * u128::from(sample) / u128::from(samples - 1);
        let start = start as u64;
        let CachedPages { cached, pages, .. } = cached_pages_in(file, start..start + bytes)?;
        share.pages += pages;
        share.cached += cached;
    }
    Ok(share)
}

/// The time for which the kernel may hold pages that are to be dropped.
const HELD: Duration = Duration::from_millis(100);
/// The interval between two attempts to drop them.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Drops the pages of a file from the page cache, after it has written them. Pages that a process
/// maps stay, and so do those of a file in memory. If pages stay, it tries again for 0.1 s.
///
/// # Errors
/// As `fdatasync(2)` and `posix_fadvise(2)`.
#[doc(alias = "drop_file_page_cache")]
pub fn drop_cached_pages(file: &File) -> io::Result<()> {
    file.sync_data()?;
    let begun = Instant::now();
    loop {
        posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        // The kernel leaves pages that it holds for a moment, and reports no error.
        match cached_pages(file) {
            Ok(pages) if pages.cached > 0 && begun.elapsed() < HELD => std::thread::sleep(RETRY_INTERVAL),
            _ => return Ok(()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::tests::DiskFile;

    #[test]
    fn a_large_file_is_sampled() {
        let (bytes, samples) = SAMPLE;
        let disk = DiskFile::new("sampled", &[1; 1 << 16]);
        let file = File::options().read(true).write(true).open(&disk.0).unwrap();
        if let Err(error) = cached_pages(&file) {
            eprintln!("skipped: {error}");
            return;
        }
        let share = cached_share(&file).unwrap();
        assert_eq!(share.to_string(), "100 % of it is in the page cache");
        // Holes have no pages until they are read.
        let length = 4 * bytes * samples;
        file.set_len(length).unwrap();
        let share = cached_share(&file).unwrap();
        assert!(share.percent() == 0 && share.pages <= length / 4096 / 4 + samples, "{share}");
        let mut buffer = vec![0; bytes as usize];
        for offset in (length / 4..length).step_by(buffer.len()) {
            file.read_exact_at(&mut buffer, offset).unwrap();
        }
        let share = cached_share(&file).unwrap();
        assert!((70..=80).contains(&share.percent()), "{share}");
        assert!(share.to_string().starts_with("about "), "{share}");
    }
}
