//! Reads that do not wait for a disk.

#![allow(unsafe_code, reason = "preadv2(2) has no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

/// Reads bytes that the page cache has (`RWF_NOWAIT`, since Linux 4.14). If it lacks them, the
/// kernel begins to read them from the disk, and returns those that arrive at once.
///
/// # Errors
/// As `preadv2(2)`; [`WouldBlock`](io::ErrorKind::WouldBlock) if the page cache does not have the
/// first byte yet.
pub(super) fn cached_read(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the only buffer is `into`, and the descriptor is open.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT) };
    Ok(Errno::result(read)? as usize)
}
