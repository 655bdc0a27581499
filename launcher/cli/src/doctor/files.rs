//! The ways to read files that depend on the kernel and on a file system.

#![allow(unsafe_code, reason = "makes a system call that the C library does not wrap")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::kernel_text::{knob, reason};
use crate::finding::Finding;

const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

pub fn lines() -> Vec<Finding> {
    vec![io_uring(make_ring(), knob(DISABLED)), direct_io(has_direct_io("."))]
}

/// Makes a ring of io_uring, and closes it.
fn make_ring() -> io::Result<()> {
    // struct io_uring_params, of which all fields may be 0.
    let mut parameters = [0_u64; 15];
    // SAFETY: io_uring_setup(2) reads and writes 120 bytes, and returns a new descriptor.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and no other code uses it.
    drop(unsafe { OwnedFd::from_raw_fd(i32::try_from(ring).map_err(io::Error::other)?) });
    Ok(())
}

fn io_uring(made: io::Result<()>, disabled: Option<String>) -> Finding {
    const NAME: &str = "io_uring";
    let line = match made {
        Ok(()) => Finding::ok(NAME, "available to this user: files can be read by the backend uring"),
        Err(error) => {
            let says = format!("refused ({}): the backends direct and posix read files", reason(&error));
            let line = Finding::note(NAME, says);
            match (error.raw_os_error(), disabled.as_deref()) {
                (Some(libc::ENOSYS), _) => line.mend("a kernel with CONFIG_IO_URING=y (5.6 or later)"),
                (_, Some("1" | "2")) => line.mend("root: sysctl kernel.io_uring_disabled=0"),
                (Some(libc::ENOMEM), _) => line.mend("raise the limit memlock"),
                _ => line.mend("allow io_uring_setup in this container's seccomp profile"),
            }
        }
    };
    line.value("io_uring_disabled", disabled)
}

/// Returns whether the file system of a folder opens files with O_DIRECT. The file that this
/// makes has no name.
fn has_direct_io(folder: &str) -> io::Result<bool> {
    let open = |flags| {
        let flags = libc::O_TMPFILE | flags;
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(folder)
    };
    // A folder in which no file can be made says nothing of direct reads.
    drop(open(0)?);
    match open(libc::O_DIRECT) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// States whether files in the working folder can be read bypassing the page cache.
fn direct_io(found: io::Result<bool>) -> Finding {
    const NAME: &str = "direct I/O";
    match found {
        Ok(true) => Finding::ok(NAME, "files in the working folder can be read bypassing the page cache"),
        Ok(false) => Finding::ok(
            NAME,
            "the file system of the working folder has no O_DIRECT: files there are read through the page cache",
        ),
        Err(error) => {
            let says =
                format!("not tried, since the working folder takes no temporary file: {}", reason(&error));
            Finding::note(NAME, says).mend("hostbuf bench FILE tells it of a file")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn each_refusal_of_io_uring_has_its_remedy() {
        let line = |number, disabled: Option<&str>| {
            io_uring(Err(io::Error::from_raw_os_error(number)), disabled.map(str::to_owned))
        };
        assert_eq!(io_uring(Ok(()), Some("0".into())).mark, Mark::Ok);
        for (number, disabled, remedy) in [
            (libc::EPERM, Some("2"), "sysctl kernel.io_uring_disabled=0"),
            (libc::EPERM, Some("0"), "seccomp"),
            (libc::EPERM, None, "seccomp"),
            (libc::ENOSYS, None, "CONFIG_IO_URING"),
            (libc::ENOMEM, Some("0"), "memlock"),
        ] {
            let line = line(number, disabled);
            assert_eq!(line.mark, Mark::Note);
            assert!(line.mends[0].contains(remedy), "{:?}", line.mends);
        }
    }

    #[test]
    fn file_systems_with_and_without_direct_io_are_told_apart() {
        assert!(direct_io(has_direct_io("/proc")).says.starts_with("not tried"));
        assert!(direct_io(Ok(false)).says.contains("has no O_DIRECT"));
        // Either answer of tmpfs is fine: it depends on the kernel.
        assert_eq!(direct_io(has_direct_io("/dev/shm")).mark, Mark::Ok);
    }
}
