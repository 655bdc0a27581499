//! Sealing a memory file that the kernel may hold for a moment.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use hostbuf_memory::{Seals, memfd};

/// The time for which pages may be held by an unknown holder before they count as pinned. The
/// kernel itself holds some pages briefly, when it migrates them or collapses them into huge pages,
/// and so does a process that reads another's memory. (The kernel itself waits for 0.15 s.)
const SEAL_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two attempts to seal.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Adds `seals` to a file. While its pages are held it tries again, for a second, as long as
/// `may_retry` returns true.
///
/// # Errors
/// As `fcntl(2)` with `F_ADD_SEALS`: `EBUSY` if a process has mapped the file for writing, or if
/// its pages are pinned.
pub(crate) fn seal_when_free(
    file: BorrowedFd<'_>,
    seals: Seals,
    mut may_retry: impl FnMut() -> bool,
) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match memfd::seal(file, seals) {
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY)
                    && may_retry()
                    && begun.elapsed() < SEAL_TIMEOUT =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            sealed => return sealed,
        }
    }
}
