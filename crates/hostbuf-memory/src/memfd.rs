//! Anonymous shared memory. It has no name in any file system, is not limited by the size of
//! `/dev/shm`, and is freed with its last user.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::seals::Seals;

/// The pages that back a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// Ordinary pages, which the kernel may collapse into transparent huge pages.
    Shmem,
    /// Huge pages from the reserved pool, of this many bytes.
    Hugetlb(u64),
}

/// Creates a memory file of `length` bytes that can be neither shrunk nor grown, so no reader gets
/// SIGBUS because another process truncated it.
///
/// # Errors
/// As `memfd_create(2)`, `ftruncate(2)` and `fcntl(2)`; `EFBIG` beyond `ulimit -f`, for which the
/// kernel would also raise SIGXFSZ.
pub fn create(name: &str, length: u64, backing: Backing) -> io::Result<OwnedFd> {
    let (most, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE)?;
    if length > most {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let mut flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    if let Backing::Hugetlb(page) = backing {
        let encoded = page.trailing_zeros() << libc::MFD_HUGE_SHIFT;
        flags |= MFdFlags::MFD_HUGETLB | MFdFlags::from_bits_retain(encoded);
    }
    let name = CString::new(name)?;
    let fd = memfd_create(name.as_c_str(), flags)?;
    nix::unistd::ftruncate(&fd, i64::try_from(length).map_err(io::Error::other)?)?;
    seal(fd.as_fd(), Seals::SHRINK | Seals::GROW)?;
    Ok(fd)
}

/// Writes `bytes` to the beginning of a memory file.
///
/// # Errors
/// As `pwrite(2)`; `WriteZero` if the file is too short.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = i64::try_from(done).map_err(io::Error::other)?;
        match nix::sys::uio::pwrite(fd, &bytes[done..], at)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => done += written,
        }
    }
    Ok(())
}

/// Adds seals to a memory file.
///
/// # Errors
/// As `fcntl(F_ADD_SEALS)`: `EBUSY` for `F_SEAL_WRITE` while any process has a writable mapping.
pub fn seal(fd: BorrowedFd<'_>, seals: Seals) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(seals.flags()))?;
    Ok(())
}

/// The time for which pages may be held by an unknown holder before they count as pinned. The
/// kernel itself holds some pages briefly, when it migrates them or collapses them into huge pages,
/// and so does a process that reads another's memory. (The kernel itself waits for 0.15 s.)
const SEAL_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two attempts to seal.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Adds `seals` to a file. While the kernel answers `EBUSY`, retries for up to a second as long as
/// `may_retry` returns true.
///
/// # Errors
/// As `fcntl(2)` with `F_ADD_SEALS`: `EBUSY` if a process has mapped the file for writing, or if
/// its pages are pinned.
pub fn seal_when_free(
    file: BorrowedFd<'_>,
    seals: Seals,
    mut may_retry: impl FnMut() -> bool,
) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match seal(file, seals) {
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

/// Returns the seals of a memory file.
///
/// # Errors
/// `EINVAL` if the file does not support seals (a file of tmpfs).
pub fn seals(fd: BorrowedFd<'_>) -> io::Result<Seals> {
    Ok(Seals::from_bits(fcntl(fd, FcntlArg::F_GET_SEALS)?))
}

/// Tries to take the filler's lock on byte `at` of `fd`. Returns false if another process has it.
/// The lock belongs to the process: the kernel releases it when the process ends for any reason,
/// and a forked child does not inherit it.
///
/// # Errors
/// As `fcntl(F_SETLK)`, except for a lock that another process holds.
pub fn try_lock(fd: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    match fcntl(fd, FcntlArg::F_SETLK(&lock(libc::F_WRLCK, at))) {
        Ok(_) => Ok(true),
        Err(nix::Error::EACCES | nix::Error::EAGAIN) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Releases the lock on byte `at`.
///
/// # Errors
/// As `fcntl(F_SETLK)`.
pub fn unlock(fd: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETLK(&lock(libc::F_UNLCK, at)))?;
    Ok(())
}

/// Returns the process that holds the lock on byte `at`, if there is one: 0 if it is in another PID
/// namespace.
///
/// # Errors
/// As `fcntl(F_GETLK)`.
pub fn lock_holder(fd: BorrowedFd<'_>, at: u64) -> io::Result<Option<i32>> {
    let mut lock = lock(libc::F_WRLCK, at);
    fcntl(fd, FcntlArg::F_GETLK(&mut lock))?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}

fn lock(kind: i32, at: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

/// Returns the inode number, which identifies a memory file.
///
/// # Errors
/// As `fstat(2)`.
pub fn inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(fd)?.st_ino)
}

/// Returns the length of the file in bytes.
///
/// # Errors
/// As `fstat(2)`.
pub fn length(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(u64::try_from(nix::sys::stat::fstat(fd)?.st_size).unwrap_or(0))
}

/// Returns the number of bytes of the pages that the file has.
///
/// # Errors
/// As `fstat(2)`.
pub fn allocated(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(fd)?.st_blocks as u64 * 512)
}

/// Frees the pages of a range, which reads as zeros afterwards.
///
/// # Errors
/// As `fallocate(2)`.
pub fn punch(fd: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<()> {
    use nix::fcntl::FallocateFlags;
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let big = |n: u64| i64::try_from(n).map_err(io::Error::other);
    Ok(nix::fcntl::fallocate(fd, flags, big(offset)?, big(length)?)?)
}
