//! Allocation of all pages of a segment before it is used.
//!
//! `MADV_POPULATE_WRITE` by several workers is as fast as touching the pages in parallel. It
//! returns an error where a touch would raise SIGBUS, and places the pages by the memory policy. A
//! process that exceeds the limit of a memory cgroup is killed. If such a limit applies to this
//! process, the workers are therefore children, and a child that the OOM killer has ended means
//! that there is not enough memory.

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
use hostbuf_os::{Bytes, memory, process};
use view::NO_ADDRESSES;
use work::{Task, WorkerFailure};

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
/// [`Error::NoSpace`] if pages ran out; [`Error::WorkerEnded`] if a signal has ended a worker;
/// [`Error::Unsupported`] for a strict demand that this kernel cannot meet.
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
        Workers::Threads(cores) => threads::run(task, &cores, progress).map_err(WorkerFailure::from),
        Workers::Children(cores) => children::run(task, &cores, progress)?,
    };
    // The pages allocated so far are still allocated, and count as available.
    let taken = || nix::sys::stat::fstat(fd).map_or(0, |s| s.st_blocks as u64 * 512);
    outcome.map_err(|failure| match failure {
        WorkerFailure::Errno(errno) => explain(errno, length, pages, taken()),
        WorkerFailure::Ended { signal, for_memory: true, .. } => ended_for_memory(signal, length, taken()),
        WorkerFailure::Ended { pid, signal, .. } => {
            let doing = format!("populating {} of memory on {}", Bytes(length), process::host_name());
            Error::WorkerEnded { doing, pid, signal }
        }
    })
}

/// Makes the error for a worker that the OOM killer has ended when `taken` bytes were allocated.
fn ended_for_memory(signal: i32, length: u64, taken: u64) -> Error {
    let mut limit = memory::tightest_limit();
    limit.remedy = format!(
        "the kernel's OOM killer ended a worker process with {} at this point; {}",
        process::signal_name(signal),
        limit.remedy
    );
    space::no_space(length, taken.min(length - 1), &limit)
}

fn explain(errno: i32, length: u64, pages: Pages, taken: u64) -> Error {
    let source = io::Error::from_raw_os_error(errno);
    let no_space = |limit: &memory::Limit| {
        space::no_space(length, space::available(limit).saturating_add(taken).min(length - 1), limit)
    };
    let other = Error::Os {
        doing: format!("populating {} of memory", Bytes(length)),
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
                requested: length,
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
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
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

    #[test]
    fn a_worker_that_is_killed_is_named_with_its_signal() {
        const LENGTH: u64 = 64 << 20;
        let fd = memfd::create("hostbuf-test", LENGTH, Backing::Shmem).unwrap();
        let mut killed = None;
        let oom_kills = memory::oom_kills();
        let error = populate(
            fd.as_fd(),
            LENGTH,
            Pages::Small,
            false,
            Workers::Children(Cores::own()),
            // Called while the workers are running, and once more.
            &mut |_| {
                let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
                let Some(pid) = children.split_whitespace().next().and_then(|pid| pid.parse().ok()) else {
                    return;
                };
                // A stopped worker cannot end by itself.
                let send = |signal| kill(Pid::from_raw(pid), signal).unwrap();
                send(Signal::SIGSTOP);
                let state = loop {
                    match process::state(pid) {
                        Some('T') => break 'T',
                        Some('Z') | None => break 'Z',
                        _ => std::thread::yield_now(),
                    }
                };
                if state == 'T' {
                    send(Signal::SIGKILL);
                    killed.get_or_insert(pid);
                }
            },
        );
        match error {
            Err(Error::WorkerEnded { pid, signal: libc::SIGKILL, .. }) => assert_eq!(Some(pid), killed),
            // All workers had ended before the first look, or the kernel was out of memory.
            Ok(_) if killed.is_none() => {}
            Err(Error::NoSpace(_)) if memory::oom_kills() != oom_kills => {}
            other => panic!("{other:?}, killed {killed:?}"),
        }
    }

    #[test]
    fn a_worker_that_the_oom_killer_has_ended_is_a_lack_of_memory() {
        let error = ended_for_memory(libc::SIGKILL, 4 << 20, 1 << 20);
        let Error::NoSpace(no_space) = &error else { panic!("{error:?}") };
        assert_eq!((no_space.requested, no_space.available), (4 << 20, 1 << 20));
        assert!(
            error.to_string().contains("OOM killer ended a worker process with signal 9 (SIGKILL)"),
            "{error}"
        );
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
