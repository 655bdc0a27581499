//! The reason why a thread has no io_uring.

use std::io;

use hostbuf_os::{Bytes, memlock};
use nix::sys::resource::{Resource, getrlimit};

/// Describes why the kernel makes no io_uring, with the remedy if it is a limit.
pub(super) fn setup_refusal(error: &io::Error) -> String {
    describe(error, memlock::limit())
}

/// Describes an error; `lockable` is the limit of locked memory in bytes, if there is one.
fn describe(error: &io::Error, lockable: Option<u64>) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring".to_owned(),
        Some(libc::EPERM | libc::EACCES) => {
            format!("io_uring is forbidden (sysctl kernel.io_uring_disabled, or seccomp): {error}")
        }
        Some(libc::EMFILE) => {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
            format!(
                "io_uring needs a file descriptor for each thread, and the limit of this process is {limit} \
                 (RLIMIT_NOFILE; raise ulimit -n): {error}"
            )
        }
        Some(libc::ENFILE) => {
            format!(
                "io_uring needs a file descriptor for each thread (raise the sysctl fs.file-max): {error}"
            )
        }
        Some(libc::ENOMEM) => match lockable {
            Some(limit) => format!(
                "io_uring needs locked memory, and the limit is {} (RLIMIT_MEMLOCK; raise ulimit -l): {error}",
                Bytes(limit)
            ),
            None => format!("io_uring_setup: {error}"),
        },
        _ => format!("io_uring_setup: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_stated_with_their_remedies() {
        let described = |number, lockable| describe(&io::Error::from_raw_os_error(number), lockable);
        assert_eq!(
            described(libc::ENOMEM, Some(64 << 10)),
            "io_uring needs locked memory, and the limit is 64 KiB (RLIMIT_MEMLOCK; raise ulimit -l): \
             Cannot allocate memory (os error 12)"
        );
        assert_eq!(described(libc::ENOMEM, None), "io_uring_setup: Cannot allocate memory (os error 12)");
        let descriptors = described(libc::EMFILE, None);
        assert!(descriptors.contains("(RLIMIT_NOFILE; raise ulimit -n): Too many"), "{descriptors}");
        assert!(described(libc::ENFILE, None).contains("raise the sysctl fs.file-max"));
        assert_eq!(described(libc::ENOSYS, None), "the kernel has no io_uring");
    }
}
