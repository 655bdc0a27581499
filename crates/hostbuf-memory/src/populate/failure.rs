//! The errors of workers, with the limit that applies and the remedy.

use std::io;

use crate::error::{Error, NoSpace};
use crate::pages::{EXTENT, Pages};
use crate::populate::view::NO_ADDRESSES;
use crate::space;
use hostbuf_os::{Bytes, memory, process};

/// Makes the error for a worker that the OOM killer has ended when `taken` bytes were allocated.
pub(super) fn ended_for_memory(signal: i32, length: u64, taken: u64) -> Error {
    let mut limit = memory::tightest_limit();
    limit.remedy = format!(
        "the kernel's OOM killer ended a worker process with {} at this point; {}",
        process::signal_name(signal),
        limit.remedy
    );
    space::no_space(length, taken.min(length - 1), &limit)
}

/// Makes the error for an errno of a worker that allocates pages of this kind, when `taken` of
/// `length` bytes were allocated.
pub(super) fn explain(errno: i32, length: u64, pages: Pages, taken: u64) -> Error {
    let source = io::Error::from_raw_os_error(errno);
    let no_space = |limit: &memory::Limit| {
        space::no_space(length, space::available(limit).saturating_add(taken).min(length - 1), limit)
    };
    let other = Error::Os {
        doing: format!("populating {} of memory", Bytes(length)),
        source: io::Error::from_raw_os_error(errno),
    };
    match (errno, pages) {
        // MADV_COLLAPSE returns EBUSY if a memory cgroup has no room for the huge page, and ENOMEM
        // if the kernel has no free huge page.
        (libc::EBUSY | libc::ENOMEM, Pages::Transparent)
            if space::available(&memory::tightest_limit()) < EXTENT =>
        {
            no_space(&memory::tightest_limit())
        }
        (libc::ENOMEM, Pages::Transparent) => {
            Error::Unsupported { what: "pages thp".into(), why: no_huge_page(&process::host_name()) }
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
            let page = pages.size();
            if let Some(limit) = space::exhausted_huge_limit(page) {
                return space::no_space(length, taken.min(length.saturating_sub(1)), &limit);
            }
            space::check_huge(length, page).err().unwrap_or(Error::NoSpace(NoSpace {
                host: process::host_name(),
                requested: length,
                available: taken.min(length.saturating_sub(1)),
                limit: format!("the reserved pool of pages of {}, in which no page was left", Bytes(page)),
                remedy: "another process has taken pages meanwhile: try again, or use --pages auto".into(),
            }))
        }
        (libc::ENOMEM | libc::ENOSPC | libc::EFAULT, _) => no_space(&memory::tightest_limit()),
        (NO_ADDRESSES, _) => space::check_address_space(length).err().unwrap_or(other),
        _ => other,
    }
}

/// Describes free memory in which there is no free huge page, with the remedy.
pub(super) fn no_huge_page(place: &str) -> String {
    format!(
        "the free memory of {place} is too fragmented for a huge page: let the kernel compact it (root: echo 1 > \
         /proc/sys/vm/compact_memory), or use --pages auto, which uses the pages that are available and reports their kind"
    )
}

/// Makes the error for a worker that a signal has ended for another reason than memory.
pub(super) fn worker_ended(length: u64, pid: i32, signal: i32) -> Error {
    let doing = format!("populating {} of memory on {}", Bytes(length), process::host_name());
    Error::WorkerEnded { doing, pid, signal }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                error.contains("reserved pool of pages of 2 MiB") || error.contains("the kernel on"),
                "{error}"
            );
            let error = explain(errno, 4096, Pages::Small, 0).to_string();
            assert!(!error.contains("pool"), "{error}");
        }
    }
}
