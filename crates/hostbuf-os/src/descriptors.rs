//! The calling thread's table of file descriptors.

#![allow(unsafe_code, reason = "calls unshare and takes over descriptors")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::{fs, io};

/// Gives the calling thread its own descriptor table that contains only `kept`, by `close_range(2)`
/// with CLOSE_RANGE_UNSHARE.
///
/// The thread then keeps no descriptor of the program open: when the program closes one, a pipe
/// reaches its end of file and a connection sends its FIN. A program with no other thread shares
/// its table with nobody again, which saves a reference count in each of its system calls.
///
/// # Errors
/// As `close_range(2)`: `ENOSYS` before Linux 5.9, `EPERM` if a seccomp profile forbids it,
/// `ENOMEM`. In that case the thread's own table may have lost some descriptors, but none of the
/// program's descriptors is closed.
pub fn keep_only(kept: &[RawFd]) -> io::Result<()> {
    let mut kept = kept.iter().map(|&fd| fd as u32).collect::<Vec<_>>();
    kept.sort_unstable();
    // The highest range is closed first, together with the unsharing: the kernel does not copy the
    // descriptors that this call closes.
    let mut end = u32::MAX;
    let mut flags = libc::CLOSE_RANGE_UNSHARE;
    for &fd in kept.iter().rev() {
        if fd < end {
            close_range(fd + 1, end, flags)?;
            flags = 0;
        }
        match fd.checked_sub(1) {
            Some(below) => end = below,
            None => return Ok(()),
        }
    }
    close_range(0, end, flags)
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: with CLOSE_RANGE_UNSHARE in the first call, only this thread's copies are closed.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number that the kernel assigned to an eventfd at its creation. Returns `None` if
/// `fd` is not open in the calling thread, or is another kind of file, and before Linux 5.2.
///
/// # Errors
/// If the file cannot be read for another reason: no free descriptor, or no `/proc`.
pub fn eventfd_number(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let text = match fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && Path::new("/proc/thread-self").exists() => {
            return Ok(None);
        }
        other => other?,
    };
    Ok(text.lines().find_map(|line| line.strip_prefix("eventfd-id:")?.trim().parse().ok()))
}

/// Gives the calling thread its own descriptor table with copies of all descriptors, by
/// `unshare(2)` with CLONE_FILES.
///
/// # Errors
/// As `unshare(2)`: `ENOMEM`, `EPERM` if a seccomp profile forbids it.
pub fn unshare() -> io::Result<()> {
    // SAFETY: descriptors keep their numbers in this thread and in all others.
    match unsafe { libc::unshare(libc::CLONE_FILES) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Duplicates a descriptor of the calling thread's table, with the flag close-on-exec.
///
/// The number may belong to another file by now: the caller checks which file the duplicate is.
///
/// # Errors
/// As `fcntl(2)` with F_DUPFD_CLOEXEC: `EBADF` if the number is free, `EMFILE`.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor for whatever file has this number; nothing is closed.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the call has returned a new descriptor, which nobody else owns.
        own => Ok(unsafe { OwnedFd::from_raw_fd(own) }),
    }
}

/// Returns whether this process has opened `/dev/xpmem`, which many MPIs use between the ranks of a
/// host.
///
/// When a thread closes that device in its own descriptor table, or ends while its table has it,
/// the driver ends all segments and attachments of the process (`xpmem_flush`), although other
/// tables still have the device open. So a process with this device keeps a single table.
#[must_use]
pub fn has_xpmem() -> bool {
    let entries = fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| is_xpmem(&target))
}

/// Returns whether `target` is the device, which a container may mount elsewhere.
fn is_xpmem(target: &Path) -> bool {
    target.ends_with("dev/xpmem")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_thread_keeps_only_the_named_descriptors_open() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (mut kept_reader, kept_writer) = std::io::pipe().unwrap();
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let kept = [kept_writer.as_raw_fd()];
        let thread = std::thread::spawn(move || {
            let done = keep_only(&kept).map_err(|e| e.raw_os_error());
            ready.send(done).unwrap();
            waits.recv().unwrap();
        });
        match is_ready.recv().unwrap() {
            Err(Some(libc::ENOSYS | libc::EPERM)) => eprintln!("skipped: close_range is not available"),
            done => {
                done.unwrap();
                drop(writer);
                // The thread is still running. With the program's table it would keep the writing
                // end open.
                assert_eq!(reader.read(&mut [0]).unwrap(), 0);
                // The thread has a copy of this one, so the pipe does not reach its end of file.
                drop(kept_writer);
                let mut poll = libc::pollfd { fd: kept_reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: `poll` is an array of one `pollfd`.
                assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0);
            }
        }
        go.send(()).unwrap();
        thread.join().unwrap();
        // The kernel frees the table when the thread ends, which may be shortly after the join.
        assert_eq!(kept_reader.read(&mut [0]).unwrap(), 0);
    }
}
