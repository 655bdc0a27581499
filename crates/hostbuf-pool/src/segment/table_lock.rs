//! The locks by which the clients of a segment show that they have it.
//!
//! Each client gets a block table through an open file description of its own, with a read lock on
//! one byte: byte 0 for the producer, byte 1 + n for the reader of row n. The kernel removes the
//! lock with the last descriptor, when the process ends or executes another program, whatever PID
//! namespace it is in (`F_OFD_SETLK`, fcntl(2)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use hostbuf_os::{ForkLock, PrivateFd};
use nix::fcntl::{FcntlArg, fcntl};

use super::segment_file::ViewAccess;

fn byte(row: Option<u32>, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: row.map_or(0, |row| 1 + i64::from(row)),
        l_len: 1,
        l_pid: 0,
    }
}

/// Opens a table for the reader of `row`, or for the producer, with its lock. Without `/proc` the
/// descriptor is a copy, and has no lock.
///
/// # Errors
/// As `open(2)`, `dup(2)` and `fcntl(2)`.
pub(crate) fn open_locked(
    table: BorrowedFd<'_>,
    row: Option<u32>,
    access: ViewAccess,
) -> io::Result<PrivateFd> {
    let path = format!("/proc/self/fd/{}", table.as_raw_fd());
    let mut unforked = ForkLock::take();
    let opened = std::fs::OpenOptions::new().read(true).write(access == ViewAccess::Write).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return table.try_clone_to_owned().map(|copy| unforked.keep(copy));
        }
        opened => unforked.keep(OwnedFd::from(opened?)),
    };
    drop(unforked);
    fcntl(&file, FcntlArg::F_OFD_SETLK(&byte(row, libc::F_RDLCK)))?;
    Ok(file)
}

/// Returns whether the lock of the reader of `row`, or that of the producer, exists. `table` is a
/// descriptor of another open file description. If the kernel does not say, it exists.
pub(crate) fn is_locked(table: BorrowedFd<'_>, row: Option<u32>) -> bool {
    let mut found = byte(row, libc::F_WRLCK);
    fcntl(table, FcntlArg::F_OFD_GETLK(&mut found)).is_err() || i32::from(found.l_type) != libc::F_UNLCK
}
