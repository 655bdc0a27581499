//! Policies that keep pages on the nodes on which they were allocated.
//!
//! Automatic NUMA balancing moves pages of a memory file to the node of their reader, unless the
//! file has a policy (seen on Linux 6.12). The policy prefers the nodes and does not bind to them:
//! a page that was swapped out comes back even if they are full.

use hostbuf_os::mempolicy::{NodeMask, prefer_for_range};
use hostbuf_os::{NodeId, memory};

use crate::mapping::{FileMapping, MappingRefused};
use crate::pages::Pages;
use crate::placement::FilePlan;
use crate::populate::work::Task;

/// The number of bytes that are mapped at a time.
const STRETCH: u64 = 16 << 30;

/// Gives the file of `task` a policy for each placed range of `plan`. Pages of the reserved pools
/// need none: the kernel never moves them by itself.
///
/// # Errors
/// The errno of the first range that has no policy now.
pub(super) fn keep_on_nodes(task: Task, plan: &FilePlan) -> Result<(), i32> {
    if !matches!(task.pages, Pages::Small | Pages::Transparent) {
        return Ok(());
    }
    for range in plan.ranges().iter().filter(|range| range.is_placed()) {
        let nodes: Vec<NodeId> = plan.bytes(range).into_iter().map(|(node, _)| node).collect();
        let os_errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let mask = NodeMask::new(nodes).map_err(os_errno)?;
        for offset in (range.offset..range.end()).step_by(STRETCH as usize) {
            let length = STRETCH.min(range.end() - offset);
            let mapping = FileMapping::of_raw(task.fd, offset, length, memory::page_size() as usize);
            let mapping = mapping.map_err(|refused| match refused {
                MappingRefused::Addresses(errno) | MappingRefused::File(errno) => errno,
            })?;
            prefer_for_range(mapping.start(), length as usize, &mask).map_err(os_errno)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_filter::{Refusal, refusing};
    use crate::memfd::{self, Backing};
    use crate::placement::PlannedRange;
    use crate::placement::plan::NodePattern;
    use hostbuf_os::mempolicy::allowed_nodes;
    use std::os::fd::AsRawFd;

    /// Linux before 5.15 has no policy that prefers several nodes, and returns EINVAL.
    #[test]
    fn several_nodes_need_no_new_kernel() {
        const PREFERRED_MANY: u32 = 5;
        let length = 2 * memory::page_size();
        let fd = memfd::create("hostbuf-test", length, Backing::Shmem).unwrap();
        let task = Task { fd: fd.as_raw_fd(), start: 0, length, pages: Pages::Small, strict: false };
        let mut nodes = allowed_nodes().expect("/proc is mounted");
        if let &[NodeId(only)] = nodes.as_slice() {
            // Every kernel with NUMA has two nodes in its masks, whether or not they exist.
            nodes.push(NodeId(u32::from(only == 0)));
        }
        let turn = NodePattern::Turn(nodes.into_iter().map(|node| (node, 1)).collect());
        let range = PlannedRange::new(0, length, Some(turn));
        let plan = FilePlan::new(memory::page_size(), vec![range]);
        let old =
            [Refusal { call: libc::SYS_mbind, only_for: Some((2, PREFERRED_MANY)), errno: libc::EINVAL }];
        let kept = refusing(&old, || keep_on_nodes(task, &plan));
        // Containers may forbid the call, and a kernel without NUMA does not have it.
        assert!(matches!(kept, Ok(()) | Err(libc::EPERM | libc::ENOSYS)), "{kept:?}");
    }
}
