//! The errors of workers that allocate pages on one node.

use std::io;

use hostbuf_os::{Bytes, NodeId, node_memory, process};

use crate::error::{Error, NoSpace};
use crate::pages::{EXTENT, Pages};
use crate::populate::failure::{no_huge_page, worker_ended};
use crate::populate::view::NO_ADDRESSES;
use crate::populate::work::WorkerFailure;
use crate::space;

/// The reason why the pages of a node are not allocated there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacedFailure {
    /// The kernel has refused the policy of a worker.
    Policy(i32),
    /// The kernel has refused to report the nodes of pages.
    Query(i32),
    /// The node has no free memory for a page.
    NodeFull,
    /// A page is on another node, and stays there.
    Misplaced { offset: u64, node: i32 },
    /// A worker has failed.
    Worker(WorkerFailure),
}

impl From<WorkerFailure> for PlacedFailure {
    fn from(failure: WorkerFailure) -> PlacedFailure {
        PlacedFailure::Worker(failure)
    }
}

/// The memory that a file requests on one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeDemand {
    pub(super) node: NodeId,
    pub(super) requested: u64,
    /// The number of bytes that were allocated before the failure.
    pub(super) taken: u64,
    pub(super) pages: Pages,
}

impl NodeDemand {
    /// Makes the error for a failure.
    pub(super) fn explain(&self, failure: PlacedFailure) -> Error {
        let NodeDemand { node, pages, .. } = *self;
        let host = process::host_name();
        let source = |errno| io::Error::from_raw_os_error(errno);
        let unsupported = |why| Error::Unsupported { what: format!("memory on node {node}"), why };
        match failure {
            PlacedFailure::Policy(libc::EPERM) | PlacedFailure::Query(libc::EPERM) => unsupported(format!(
                "a filter for system calls on {host} forbids placing memory, as in most containers: start the container with the \
                 capability SYS_NICE (docker run --cap-add SYS_NICE), or leave out the placement"
            )),
            PlacedFailure::Policy(errno) => unsupported(format!(
                "the kernel on {host} refused to bind a process to the node ({}): check with `hostbuf topology` that the node is \
                 online and in the cpuset of this process",
                source(errno)
            )),
            PlacedFailure::Query(errno) => unsupported(format!(
                "the kernel on {host} does not report the nodes of pages ({}): leave out the placement",
                source(errno)
            )),
            PlacedFailure::NodeFull => self.no_space("the kernel found no free page there"),
            PlacedFailure::Misplaced { offset, node: found } => unsupported(format!(
                "the kernel on {host} placed the page at offset {offset} of {} on node {found}; if the cpuset of this process has \
                 changed meanwhile, start the job again",
                Bytes(self.requested)
            )),
            PlacedFailure::Worker(WorkerFailure::Ended { signal, for_memory: true, .. }) => {
                self.no_space(&format!(
                    "the kernel's OOM killer ended a worker process with {}",
                    process::signal_name(signal)
                ))
            }
            PlacedFailure::Worker(WorkerFailure::Ended { pid, signal, .. }) => {
                worker_ended(self.requested, pid, signal)
            }
            PlacedFailure::Worker(WorkerFailure::Errno(errno)) => match (errno, pages) {
                (NO_ADDRESSES, _) => {
                    space::check_address_space(self.requested).err().unwrap_or_else(|| Error::Os {
                        doing: format!("mapping {} of memory on {host}", Bytes(self.requested)),
                        source: source(libc::ENOMEM),
                    })
                }
                (libc::EINVAL | libc::EAGAIN | libc::EBUSY, Pages::Transparent) => Error::Unsupported {
                    what: format!("pages thp on node {node}"),
                    why: format!(
                        "the kernel on {host} did not collapse all of the memory there into huge pages ({}): use --pages auto, \
                         which uses the pages that are available and reports their kind",
                        source(errno)
                    ),
                },
                (libc::ENOMEM, Pages::Transparent) if self.free() >= EXTENT => Error::Unsupported {
                    what: format!("pages thp on node {node}"),
                    why: no_huge_page(&format!("node {node} of {host}")),
                },
                (libc::ENOMEM | libc::EFAULT | libc::ENOSPC, _) => self.no_space(&source(errno).to_string()),
                _ => Error::Os {
                    doing: format!("populating {} on node {node} of {host}", Bytes(self.requested)),
                    source: source(errno),
                },
            },
        }
    }

    /// Returns the free bytes of the node for this kind of pages.
    fn free(&self) -> u64 {
        match self.pages {
            Pages::Huge2M | Pages::Huge1G => node_memory::free_in_pool(self.node, self.pages.size()),
            _ => node_memory::available(self.node).unwrap_or(0),
        }
    }

    /// Makes the error for a node without enough free memory, which `symptom` has shown.
    fn no_space(&self, symptom: &str) -> Error {
        let NodeDemand { node, requested, taken, pages } = *self;
        let memory = match pages {
            Pages::Huge2M | Pages::Huge1G => {
                format!("node {node}'s reserved pool of pages of {}", Bytes(pages.size()))
            }
            _ => format!("the free memory of node {node}"),
        };
        // The pages allocated so far were available.
        let available = self.free().saturating_add(taken).min(requested.saturating_sub(1));
        Error::NoSpace(NoSpace {
            host: process::host_name(),
            requested,
            available,
            limit: format!("{memory} ({symptom})"),
            remedy: "another process has taken memory of the node meanwhile: try again, request less, or use another placement".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_names_the_node_the_host_and_the_remedy() {
        let demand = |pages| NodeDemand { node: NodeId(3), requested: 8 << 20, taken: 2 << 20, pages };
        let ended = |for_memory| WorkerFailure::Ended { pid: 7, signal: libc::SIGKILL, for_memory };
        for (pages, failure, words) in [
            (Pages::Small, PlacedFailure::Policy(libc::EPERM), ["memory on node 3", "--cap-add SYS_NICE"]),
            (Pages::Small, PlacedFailure::Policy(libc::EINVAL), ["memory on node 3", "cpuset"]),
            (
                Pages::Small,
                PlacedFailure::Query(libc::ENOSYS),
                ["memory on node 3", "leave out the placement"],
            ),
            (
                Pages::Small,
                PlacedFailure::NodeFull,
                ["free memory of node 3 (the kernel found no", "try again"],
            ),
            (Pages::Small, PlacedFailure::Misplaced { offset: 4096, node: 1 }, ["offset 4096", "on node 1"]),
            (
                Pages::Transparent,
                WorkerFailure::Errno(libc::EINVAL).into(),
                ["pages thp on node 3", "--pages auto"],
            ),
            (Pages::Small, WorkerFailure::Errno(libc::ENOMEM).into(), ["free memory of node 3", "try again"]),
            (
                Pages::Huge2M,
                WorkerFailure::Errno(libc::EFAULT).into(),
                ["node 3's reserved pool", "request less"],
            ),
            (Pages::Small, ended(true).into(), ["OOM killer ended a worker", "free memory of node 3"]),
            (Pages::Small, ended(false).into(), ["worker process 7", "has not sent"]),
            (Pages::Small, WorkerFailure::Errno(libc::EIO).into(), ["populating 8 MiB", "node 3"]),
        ] {
            let error = demand(pages).explain(failure).to_string();
            assert!(error.contains(&process::host_name()), "{error}");
            for word in words {
                assert!(error.contains(word), "{word}: {error}");
            }
        }
    }
}
