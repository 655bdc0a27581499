//! The errors of workers that allocate pages on one node.

use std::io;

use hostbuf_os::{Bytes, NodeId, memory, node_memory, process};

use crate::error::{Error, NoSpace};
use crate::pages::{EXTENT, Pages};
use crate::populate::failure::{ended_for_memory, no_huge_page, worker_ended};
use crate::populate::view::NO_ADDRESSES;
use crate::populate::work::WorkerFailure;
use crate::space;

/// The reason why the pages of a node are not allocated there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacedFailure {
    /// The kernel has refused the policy of a worker.
    Policy(i32),
    /// The kernel has refused to look up the nodes of pages.
    Query(i32),
    /// The kernel has refused to move pages.
    Move(i32),
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
#[derive(Clone, Debug)]
pub(super) struct NodeDemand {
    pub(super) node: NodeId,
    pub(super) requested: u64,
    /// The number of bytes that were allocated before the failure.
    pub(super) taken: u64,
    pub(super) pages: Pages,
    pub(super) limits: NodeLimits,
}

/// The limits on the memory of a node, after a failure.
#[derive(Clone, Debug)]
pub(super) struct NodeLimits {
    /// The number of free bytes of the node for the kind of pages.
    on_node: u64,
    /// The tightest limit on ordinary pages, of the host or of a memory cgroup.
    ordinary: memory::Limit,
    /// The limit of a hugetlb cgroup that allows no further page of the kind.
    huge: Option<memory::Limit>,
}

impl NodeLimits {
    /// Returns the limits now.
    pub(super) fn of(node: NodeId, pages: Pages) -> NodeLimits {
        let (on_node, huge) = match pages {
            Pages::Huge2M | Pages::Huge1G => {
                let page = pages.size();
                (node_memory::free_in_pool(node, page), space::exhausted_huge_limit(page))
            }
            _ => (node_memory::available(node).unwrap_or(0), None),
        };
        NodeLimits { on_node, ordinary: memory::tightest_limit(), huge }
    }
}

impl NodeDemand {
    /// Makes the error for a failure.
    pub(super) fn explain(&self, failure: PlacedFailure) -> Error {
        let NodeDemand { node, pages, .. } = *self;
        let host = process::host_name();
        let source = |errno| io::Error::from_raw_os_error(errno);
        let refused = |why| Error::Placement { action: format!("place memory on node {node}"), why };
        match failure {
            PlacedFailure::Policy(libc::EPERM) => refused(format!(
                "a filter for system calls on {host} forbids placing memory, as in most containers: start the container with the \
                 capability SYS_NICE (docker run --cap-add SYS_NICE), or leave out the placement"
            )),
            PlacedFailure::Policy(errno) => refused(format!(
                "the kernel on {host} refused a memory policy for the node ({}): check with `hostbuf topology` that the node is \
                 online and in the cpuset of this process",
                source(errno)
            )),
            PlacedFailure::Query(libc::EPERM) => refused(format!(
                "a filter for system calls on {host} forbids looking up the nodes of pages (get_mempolicy, move_pages), as in most \
                 containers: {}, or leave out the placement",
                allow("get_mempolicy")
            )),
            PlacedFailure::Query(errno) => refused(format!(
                "the kernel on {host} does not report the nodes of the pages (get_mempolicy: {}): leave out the placement",
                source(errno)
            )),
            PlacedFailure::Move(libc::EPERM) => refused(format!(
                "the kernel took a page from another node, and a filter for system calls on {host} forbids moving it (move_pages), \
                 as in most containers: {}, or leave out the placement",
                allow("move_pages")
            )),
            PlacedFailure::Move(errno @ libc::EACCES) => refused(format!(
                "the kernel on {host} does not move pages to the node ({}), which the cpuset of this process no longer has: start \
                 the job again with a node of the cpuset (`hostbuf topology` lists them)",
                source(errno)
            )),
            PlacedFailure::Move(errno @ libc::ENODEV) => refused(format!(
                "the kernel on {host} does not move pages to the node ({}), which is offline now: bring it online again, or use \
                 another node",
                source(errno)
            )),
            PlacedFailure::Move(errno) => refused(format!(
                "the kernel on {host} took a page from another node and refused to move it (move_pages: {}): leave out the placement",
                source(errno)
            )),
            PlacedFailure::NodeFull => self.node_full("the kernel found no free page there"),
            PlacedFailure::Misplaced { offset, node: found } => refused(format!(
                "the kernel on {host} keeps the page at offset {offset} of the memory file on node {found}, since it uses the page \
                 at the moment (compaction, swap) or the cpuset of this process has changed: start the job again, or leave out the \
                 placement"
            )),
            PlacedFailure::Worker(WorkerFailure::Ended { signal, for_memory: true, .. }) => {
                // In a cpuset with one node, its memory is all that there is.
                if space::available(&self.limits.ordinary) < self.limits.on_node {
                    return ended_for_memory(signal, self.requested, self.taken);
                }
                let signal = process::signal_name(signal);
                self.node_full(&format!("the kernel's OOM killer ended a worker process with {signal}"))
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
                // MADV_COLLAPSE returns EBUSY if a memory cgroup has no room for the huge page.
                (
                    libc::EBUSY | libc::ENOMEM | libc::EFAULT | libc::ENOSPC,
                    Pages::Transparent | Pages::Small,
                ) if space::available(&self.limits.ordinary) < EXTENT.min(self.limits.on_node) => {
                    self.limited_by(&self.limits.ordinary)
                }
                (libc::EINVAL | libc::EAGAIN | libc::EBUSY, Pages::Transparent) => Error::Placement {
                    action: format!("use pages thp on node {node}"),
                    why: format!(
                        "the kernel on {host} did not collapse all of the memory there into huge pages ({}): use --pages auto, \
                         which uses the pages that are available and reports their kind",
                        source(errno)
                    ),
                },
                (libc::ENOMEM, Pages::Transparent) if self.limits.on_node >= EXTENT => Error::Placement {
                    action: format!("use pages thp on node {node}"),
                    why: no_huge_page(&format!("node {node} of {host}")),
                },
                (libc::ENOMEM | libc::EFAULT | libc::ENOSPC, _) => match &self.limits.huge {
                    Some(limit) => self.limited_by(limit),
                    None => self.node_full("the kernel found no free page there"),
                },
                _ => Error::Os {
                    doing: format!("populating {} on node {node} of {host}", Bytes(self.requested)),
                    source: source(errno),
                },
            },
        }
    }

    /// Makes the error for a node without enough free memory, which `symptom` has shown.
    fn node_full(&self, symptom: &str) -> Error {
        let NodeDemand { node, requested, taken, pages, .. } = *self;
        let memory = match pages {
            Pages::Huge2M | Pages::Huge1G => {
                format!("node {node}'s reserved pool of pages of {}", Bytes(pages.size()))
            }
            _ => format!("the free memory of node {node}"),
        };
        // The pages allocated so far were available.
        let available = self.limits.on_node.saturating_add(taken).min(requested.saturating_sub(1));
        Error::NoSpace(NoSpace {
            host: process::host_name(),
            requested,
            available,
            limit: format!("{memory} ({symptom})"),
            remedy: "another process has taken memory of this node meanwhile: try again, request less, or use another placement".into(),
        })
    }

    /// Makes the error for a limit that holds for all nodes together.
    fn limited_by(&self, limit: &memory::Limit) -> Error {
        let available = limit.available.saturating_add(self.taken).min(self.requested.saturating_sub(1));
        space::no_space(self.requested, available, limit)
    }
}

/// Returns the remedy for a container's filter that forbids a system call.
fn allow(call: &str) -> String {
    format!(
        "start the container with a seccomp profile that allows {call}, or without one (docker run --security-opt \
         seccomp=unconfined)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &str, available: u64) -> memory::Limit {
        let mut limit = memory::tightest_limit();
        (limit.name, limit.available, limit.remedy) = (name.into(), available, "raise it".into());
        limit
    }

    fn demand(pages: Pages, limits: NodeLimits) -> NodeDemand {
        NodeDemand { node: NodeId(3), requested: 8 << 20, taken: 2 << 20, pages, limits }
    }

    /// A limit of a cgroup is the cause if it is exhausted, and the node is not to blame.
    #[test]
    fn an_exhausted_cgroup_is_the_cause() {
        let node = || NodeLimits { on_node: 1 << 30, ordinary: limit("the cgroup /job", 4096), huge: None };
        let ended = WorkerFailure::Ended { pid: 7, signal: libc::SIGKILL, for_memory: true };
        for (pages, failure) in [
            (Pages::Transparent, WorkerFailure::Errno(libc::EBUSY)),
            (Pages::Transparent, WorkerFailure::Errno(libc::ENOMEM)),
            (Pages::Small, WorkerFailure::Errno(libc::ENOMEM)),
        ] {
            let error = demand(pages, node()).explain(failure.into()).to_string();
            assert!(error.contains("limited by the cgroup /job") && error.contains("raise it"), "{error}");
            assert!(!error.contains("node 3"), "{error}");
        }
        // The limits of this process are the cause, and not the node.
        let error = demand(Pages::Small, node()).explain(ended.into()).to_string();
        assert!(error.contains("OOM killer") && !error.contains("node 3"), "{error}");
        let huge = NodeLimits { huge: Some(limit("the cgroup /job's hugetlb.2MB.max", 0)), ..node() };
        let error =
            demand(Pages::Huge2M, huge).explain(WorkerFailure::Errno(libc::EFAULT).into()).to_string();
        assert!(error.contains("limited by the cgroup /job's hugetlb.2MB.max"), "{error}");
        let error = demand(Pages::Huge2M, node()).explain(WorkerFailure::Errno(libc::EFAULT).into());
        assert!(!error.to_string().contains("Bad address"), "{error}");
        assert!(error.to_string().contains("node 3's reserved pool"), "{error}");
    }

    #[test]
    fn each_failure_names_the_node_the_host_and_the_remedy() {
        let limits = NodeLimits { on_node: 4 << 20, ordinary: limit("the host", 1 << 30), huge: None };
        let demand = |pages| demand(pages, limits.clone());
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
                PlacedFailure::Query(libc::EPERM),
                ["allows get_mempolicy", "--security-opt seccomp=unconfined"],
            ),
            (
                Pages::Small,
                PlacedFailure::Move(libc::EPERM),
                ["allows move_pages", "--security-opt seccomp=unconfined"],
            ),
            (Pages::Small, PlacedFailure::Move(libc::EACCES), ["the cpuset", "memory on node 3"]),
            (Pages::Small, PlacedFailure::Move(libc::ENODEV), ["is offline now", "memory on node 3"]),
            (Pages::Small, PlacedFailure::Move(libc::EIO), ["refused to move it", "leave out the placement"]),
            (
                Pages::Small,
                PlacedFailure::NodeFull,
                ["free memory of node 3 (the kernel found no", "try again"],
            ),
            (
                Pages::Small,
                PlacedFailure::Misplaced { offset: 4096, node: 1 },
                ["offset 4096 of the memory file on node 1", "compaction, swap"],
            ),
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
