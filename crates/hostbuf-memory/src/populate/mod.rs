//! Allocation of all pages of a segment before it is used.
//!
//! `MADV_POPULATE_WRITE` by several workers is as fast as touching the pages in parallel. It
//! returns an error where a touch would raise SIGBUS, and places the pages by the memory policy. A
//! process that exceeds the limit of a memory cgroup is killed. If such a limit applies to this
//! process, the workers are therefore children, and a killed child means that there is not enough
//! memory.

mod children;
mod threads;
mod view;
mod work;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, NoSpace, Result};
use crate::pages::{EXTENT, Pages};
use crate::space;
use hostbuf_os::cores::Cores;
use hostbuf_os::{memory, process};
use view::NO_ADDRESSES;
use work::Task;

/// The kind of workers that populate memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workers {
    /// The calling thread, and further threads of this process on these cores.
    Threads(Cores),
    /// Children of this process on these cores. If one is killed, populating fails, but this
    /// process continues.
    Children(Cores),
}

impl Workers {
    /// Returns the workers that suit this process: threads on its own cores. If a memory cgroup
    /// limits the process, they are children, since the cgroup kills a process that exceeds the
    /// limit.
    #[must_use]
    pub fn of_this_process() -> Workers {
        Workers::on(Cores::own())
    }

    /// Returns the workers that suit this process, on `cores`. Without the limit of a cgroup they
    /// are threads, since a fork of a large program is slow, and some network libraries do not
    /// support it.
    #[must_use]
    pub fn on(cores: Cores) -> Workers {
        if memory::cgroup_limited() { Workers::Children(cores) } else { Workers::Threads(cores) }
    }
}

/// Allocates all `length` bytes (whole pages) of `fd` on `pages`, which must not be
/// [`Pages::Auto`]. With `strict`, a huge page that is not available is an error. `progress` is
/// called occasionally with the number of bytes allocated so far. Returns the number of bytes on
/// huge pages.
///
/// # Errors
/// [`Error::NoSpace`] if pages ran out or a worker was killed; [`Error::Unsupported`] for a strict
/// demand that this kernel cannot meet.
pub fn populate(
    fd: BorrowedFd<'_>,
    length: u64,
    pages: Pages,
    strict: bool,
    workers: Workers,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let task = Task { fd: fd.as_raw_fd(), length, pages, strict };
    let outcome = match workers {
        Workers::Threads(cores) => threads::run(task, &cores, progress),
        Workers::Children(cores) => children::run(task, &cores, progress)?,
    };
    // The pages allocated so far are still allocated, and count as available.
    let taken = || nix::sys::stat::fstat(fd).map_or(0, |s| s.st_blocks as u64 * 512);
    outcome.map_err(|errno| explain(errno, length, pages, taken()))
}

fn explain(errno: i32, length: u64, pages: Pages, taken: u64) -> Error {
    let source = io::Error::from_raw_os_error(errno);
    let no_space = |limit: &memory::Limit| {
        space::no_space(length, space::available(limit).saturating_add(taken).min(length - 1), limit)
    };
    let other = Error::Os {
        doing: format!("populating {} of memory", hostbuf_os::Bytes(length)),
        source: io::Error::from_raw_os_error(errno),
    };
    match (errno, pages) {
        // MADV_COLLAPSE returns EBUSY if a memory cgroup has no room for the huge page.
        (libc::EBUSY, Pages::Transparent) if space::available(&memory::tightest_limit()) < EXTENT => {
            no_space(&memory::tightest_limit())
        }
        (libc::EINVAL | libc::EAGAIN | libc::EBUSY, Pages::Transparent) => Error::Unsupported {
            what: "pages thp".into(),
            why: format!(
                "the kernel on {} did not collapse all of the memory into huge pages ({source}). Use --pages auto, \
                 which uses the pages that are available and reports their kind",
                process::host_name()
            ),
        },
        (libc::ENOMEM | libc::EFAULT | libc::ENOSPC, Pages::Huge2M | Pages::Huge1G) => {
            space::check_huge(length, pages.size()).err().unwrap_or(Error::NoSpace(NoSpace {
                host: process::host_name(),
                asked: length,
                available: 0,
                limit: format!("the pool of reserved huge pages ({source})"),
                remedy: "another process has taken them meanwhile, or a hugetlb cgroup has a limit; try again, or use --pages auto".into(),
            }))
        }
        (libc::ENOMEM | libc::ENOSPC | libc::EFAULT, _) => no_space(&memory::tightest_limit()),
        (NO_ADDRESSES, _) => space::check_address_space(length).err().unwrap_or(other),
        _ => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, Backing};
    use std::os::fd::AsFd;

    fn resident(fd: BorrowedFd<'_>) -> u64 {
        nix::sys::stat::fstat(fd).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn threads_and_children_allocate_every_page() {
        for workers in [Workers::Threads(Cores::own()), Workers::Children(Cores::own())] {
            for (length, pages) in
                [(4096 * 3, Pages::Small), (5 << 20, Pages::Small), (6 << 20, Pages::Transparent)]
            {
                let fd = memfd::create("hostbuf-test", length, Backing::Shmem).unwrap();
                let mut last = 0;
                let huge =
                    populate(fd.as_fd(), length, pages, false, workers, &mut |done| last = done).unwrap();
                assert_eq!(resident(fd.as_fd()), length, "{workers:?} {pages}");
                assert!(huge <= length && last <= length);
                if pages == Pages::Small {
                    assert_eq!(huge, 0);
                }
            }
        }
    }

    /// The error for a lack of reserved pages names their pool, not the memory of the host.
    #[test]
    fn a_lack_of_reserved_pages_names_the_pool() {
        for errno in [libc::ENOMEM, libc::EFAULT, libc::ENOSPC] {
            // No pool has this many pages: the length exceeds any host.
            let error = explain(errno, 1 << 60, Pages::Huge2M, 0).to_string();
            assert!(error.contains("reserved pool") || error.contains("the kernel on"), "{error}");
            // The pool had enough pages at the time of the check.
            let error = explain(errno, 0, Pages::Huge2M, 0).to_string();
            assert!(
                error.contains("pool of reserved huge pages") || error.contains("the kernel on"),
                "{error}"
            );
            let error = explain(errno, 4096, Pages::Small, 0).to_string();
            assert!(!error.contains("pool"), "{error}");
        }
    }
}
