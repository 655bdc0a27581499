//! The parts of a file that the page cache has before the file is read.

use std::fs::File;
use std::ops::Range;

use hostbuf_staging::cached_pages_in;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// The windows of a file of which the page cache has no page.
#[derive(Debug)]
pub(super) struct CachedWindows {
    /// The windows one after another, as ranges of bytes.
    absent: Vec<Range<u64>>,
}

impl CachedWindows {
    /// Examines a file of `bytes` bytes in windows of `window` bytes. If the kernel does not tell
    /// (before Linux 6.5), no window counts as absent.
    pub(super) fn of(file: &File, bytes: u64, window: u64) -> CachedWindows {
        let starts = (0..bytes).step_by(window as usize);
        let windows = starts.map(|start| start..(start + window).min(bytes));
        let is_absent =
            |range: &Range<u64>| cached_pages_in(file, range.clone()).is_ok_and(|pages| pages.cached == 0);
        CachedWindows { absent: windows.filter(is_absent).collect() }
    }

    /// Drops the windows from the page cache that were not in it before, so that the file does not
    /// occupy the memory of the host twice.
    pub(super) fn drop_others(&self, file: &File) {
        for Range { start, end } in &self.absent {
            let (start, length) = (*start as i64, (end - start) as i64);
            // Pages that stay are reclaimed when another program needs the memory.
            if let Err(error) = posix_fadvise(file, start, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED) {
                tracing::warn!(%error, "the page cache keeps a file that was loaded");
                return;
            }
        }
    }
}
