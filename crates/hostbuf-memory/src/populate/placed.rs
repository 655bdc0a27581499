//! Workers that allocate the pages of a plan, each on its node.
//!
//! A worker is a child of this process, runs on the cores of its node and prefers the node. It
//! moves pages that the kernel took from another node, which fails if the node is full. The policy
//! belongs to the worker, not to the file: `MADV_COLLAPSE` makes a huge page on the node of the
//! small page in its extent, whatever policy the file has. (For a file with `MPOL_INTERLEAVE` the
//! kernel counts small pages, so the first page of every extent would be on one node.)
//!
//! Pages of a pool are bound to the node, since a pool that is empty there is an error and no
//! reason to call the OOM killer. The policy is that of the mapping: the page tables of a bound
//! process would come from the node too.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use hostbuf_os::NodeId;
use hostbuf_os::array::Zero;
use hostbuf_os::cores::Cores;
use hostbuf_os::memory;
use hostbuf_os::mempolicy::{MemoryPolicy, NodeMask, is_only_node};
use hostbuf_os::node_memory::NodeGauge;

use crate::error::{Error, Result};
use crate::memfd;
use crate::pages::{EXTENT, Pages};
use crate::placement::plan::{FilePlan, PlanPart};
use crate::populate::children;
use crate::populate::fork_shared::ForkShared;
use crate::populate::obtained::ObtainedPages;
use crate::populate::place_pages::{Misplaced, place_pages};
use crate::populate::placed_failure::{NodeDemand, NodeLimits, PlacedFailure};
use crate::populate::view::FileView;
use crate::populate::work::{Tally, Task};

/// The state that the workers of one node share.
#[derive(Default)]
#[repr(C)]
struct NodeTally {
    tally: Tally,
    /// The errno of the policy, if it was refused.
    refused_policy: AtomicI32,
    /// The errno of the query for the nodes of pages, if it was refused.
    refused_query: AtomicI32,
    /// The errno of moving pages, if it was refused.
    refused_move: AtomicI32,
    /// 1 if the node has no free memory for a page.
    full: AtomicI32,
    /// The first page on another node: 1 more than its offset in the file, 0 for none.
    misplaced: AtomicU64,
    /// The node of that page.
    misplaced_on: AtomicI32,
}

#[allow(unsafe_code, reason = "declares that zeroed memory is a valid value")]
// SAFETY: zero is a valid value of each atomic.
unsafe impl Zero for NodeTally {}

/// The nodes of a plan with the cores that allocate their pages.
pub(super) type NodeCores = Vec<(NodeId, Cores)>;

/// Allocates all placed pages of `plan` in the file of `task`, and verifies the node of each.
/// `cores` are the nodes of the plan with their cores.
pub(super) fn run(
    fd: BorrowedFd<'_>,
    task: Task,
    plan: &FilePlan,
    cores: &NodeCores,
    progress: &mut dyn FnMut(u64),
) -> Result<ObtainedPages> {
    let nodes = &ForkShared::<NodeTally>::new(cores.len())?;
    let bytes = &ForkShared::<Counter>::new(cores.len() * plan.ranges().len())?;
    let workers = &workers_of(task, plan, cores);
    let masks = cores.iter().map(|&(node, _)| NodeMask::new([node])).collect::<std::io::Result<Vec<_>>>();
    let masks = masks.map_err(Error::os("naming the nodes of a placement"))?;
    let is_only_node = cores.len() == 1 && is_only_node(cores[0].0);
    let together = is_only_node && memory::oom_group().is_some();
    let gauge = together.then(|| NodeGauge::open(cores[0].0)).flatten();
    let in_child = |number: usize| {
        let Worker { index, first } = &workers[number];
        let (node, all) = &cores[*index];
        all.begin_at(first);
        let on_node = NodeWork {
            task,
            plan,
            node: *node,
            tally: &nodes[*index],
            mask: masks[*index],
            is_only_node,
            has_policy: false,
            gauge: gauge.as_ref(),
            bytes: &bytes[*index * plan.ranges().len()..][..plan.ranges().len()],
        };
        on_node.run().err().unwrap_or(0)
    };
    let done = || nodes.iter().map(|node| node.tally.done.load(Ordering::Relaxed)).sum();
    let ended = children::supervise(workers.len(), in_child, &mut || progress(done()))?;
    if let Err((number, failure)) = ended {
        let Worker { index, .. } = workers[number];
        let (node, failure) = (cores[index].0, nodes[index].failure().unwrap_or(failure.into()));
        let requested = plan.ranges().iter().flat_map(|range| plan.bytes(range));
        let counted = nodes[index].tally.done.load(Ordering::Relaxed);
        // The file also has the pages of the part at which the worker failed.
        let taken = if cores.len() == 1 { memfd::allocated(fd).unwrap_or(counted) } else { counted };
        let demand = NodeDemand {
            node,
            requested: requested.filter(|(on, _)| *on == node).map(|(_, bytes)| bytes).sum(),
            taken,
            pages: task.pages,
            limits: NodeLimits::of(node, task.pages),
        };
        return Err(demand.explain(failure));
    }
    let huge = nodes.iter().map(|node| node.tally.huge.load(Ordering::Relaxed)).sum();
    let on_nodes = (0..plan.ranges().len()).map(|range| obtained(range, plan, cores, bytes)).collect();
    Ok(ObtainedPages { huge, on_nodes })
}

/// A worker: the index of its node, and the core on which it begins.
struct Worker {
    index: usize,
    first: Cores,
}

/// Returns the workers of all nodes.
fn workers_of(task: Task, plan: &FilePlan, cores: &NodeCores) -> Vec<Worker> {
    let mut workers = Vec::new();
    for (index, (node, cores)) in cores.iter().enumerate() {
        let bytes: u64 = plan
            .ranges()
            .iter()
            .flat_map(|range| plan.bytes(range))
            .filter(|(n, _)| n == node)
            .map(|(_, bytes)| bytes)
            .sum();
        // Only the windows in which the node has pages take time.
        let own = Task { length: bytes, ..task };
        let first = cores.spread(own.workers(cores.threads()));
        workers.extend(first.into_iter().map(|first| Worker { index, first }));
    }
    workers
}

/// Returns the verified bytes of one range on each node, without the nodes that have none.
fn obtained(range: usize, plan: &FilePlan, cores: &NodeCores, bytes: &[Counter]) -> Vec<(NodeId, u64)> {
    let on = |(index, (node, _)): (usize, &(NodeId, Cores))| {
        (*node, bytes[index * plan.ranges().len() + range].0.load(Ordering::Relaxed))
    };
    cores.iter().enumerate().map(on).filter(|(_, bytes)| *bytes > 0).collect()
}

/// A number of bytes that several workers add to.
#[derive(Default)]
#[repr(transparent)]
struct Counter(AtomicU64);

#[allow(unsafe_code, reason = "declares that zeroed memory is a valid value")]
// SAFETY: zero is a valid value of an atomic.
unsafe impl Zero for Counter {}

impl NodeTally {
    /// Records the reason why a page is not on the node, in a view that begins at `start` in the
    /// file. Returns the errno with which the worker ends.
    fn record(&self, misplaced: Misplaced, start: u64) -> i32 {
        match misplaced {
            Misplaced::Query(errno) => {
                self.refused_query.store(errno, Ordering::Relaxed);
                errno
            }
            Misplaced::Move(errno) => {
                self.refused_move.store(errno, Ordering::Relaxed);
                errno
            }
            Misplaced::NodeFull => {
                self.full.store(1, Ordering::Relaxed);
                libc::ENOMEM
            }
            Misplaced::Elsewhere { offset, node } => {
                self.misplaced_on.store(node, Ordering::Relaxed);
                self.misplaced.store(start + offset + 1, Ordering::Release);
                libc::EXDEV
            }
        }
    }

    /// Returns the failure that a worker of the node has recorded.
    fn failure(&self) -> Option<PlacedFailure> {
        let refused = [
            (&self.refused_policy, PlacedFailure::Policy as fn(i32) -> PlacedFailure),
            (&self.refused_query, PlacedFailure::Query),
            (&self.refused_move, PlacedFailure::Move),
        ];
        for (errno, failure) in refused {
            let errno = errno.load(Ordering::Relaxed);
            if errno != 0 {
                return Some(failure(errno));
            }
        }
        let node = || self.misplaced_on.load(Ordering::Relaxed);
        match self.misplaced.load(Ordering::Acquire) {
            0 => (self.full.load(Ordering::Relaxed) != 0).then_some(PlacedFailure::NodeFull),
            offset => Some(PlacedFailure::Misplaced { offset: offset - 1, node: node() }),
        }
    }
}

/// The work of one child for one node. This code neither allocates nor locks.
struct NodeWork<'a> {
    task: Task,
    plan: &'a FilePlan,
    node: NodeId,
    mask: NodeMask,
    /// True if the kernel cannot take the pages from another node, so that a filter for system
    /// calls does no harm.
    is_only_node: bool,
    /// True if the worker has a policy, so that its pages have to be verified.
    has_policy: bool,
    /// The free memory of the node, if it has to be measured before each step: the OOM killer is
    /// called if it is the only node, and ends more than this process.
    gauge: Option<&'a NodeGauge>,
    tally: &'a NodeTally,
    /// The verified bytes of each range.
    bytes: &'a [Counter],
}

impl NodeWork<'_> {
    fn run(mut self) -> std::result::Result<(), i32> {
        let tally = &self.tally.tally;
        // A kernel without NUMA has one node and takes all pages from it.
        self.has_policy = match self.policy() {
            Ok(()) => true,
            Err(libc::ENOSYS) if self.node == NodeId(0) => false,
            Err(libc::ENOSYS | libc::EPERM) if self.is_only_node => false,
            Err(errno) => return Err(self.refuse_policy(errno)),
        };
        let window = self.task.window();
        while let Some((at, length)) = tally.claim(window, self.task.end()) {
            if self.plan.parts(self.node, at, at + length).next().is_none() {
                continue;
            }
            let view = FileView::map(self.task.fd, at, length, self.task.pages).map_err(|e| tally.fail(e))?;
            if self.has_policy && self.is_pool() {
                let bound = view.bind(&self.mask).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO));
                bound.map_err(|errno| self.refuse_policy(errno))?;
            }
            self.allocate_window(&view, at, length).map_err(|errno| tally.fail(errno))?;
        }
        Ok(())
    }

    /// Sets the policy of this process. A part of the ordinary pages may be on another node at
    /// first.
    fn policy(&self) -> std::result::Result<(), i32> {
        MemoryPolicy::Preferred(self.mask).apply().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
    }

    fn refuse_policy(&self, errno: i32) -> i32 {
        self.tally.refused_policy.store(errno, Ordering::Relaxed);
        self.tally.tally.fail(errno)
    }

    fn is_pool(&self) -> bool {
        matches!(self.task.pages, Pages::Huge2M | Pages::Huge1G)
    }

    /// Checks that the node has memory for the small pages of an extent, if that has to be checked.
    /// The reserves of the kernel suffice for those of the other workers.
    fn measure(&self) -> std::result::Result<(), i32> {
        let free = self.gauge.filter(|_| !self.is_pool()).and_then(NodeGauge::available);
        match free {
            Some(free) if free < EXTENT => Err(self.tally.record(Misplaced::NodeFull, 0)),
            _ => Ok(()),
        }
    }

    /// Allocates the pages of the node in a window of the file, which `view` maps from `start` on,
    /// and verifies them.
    fn allocate_window(&self, view: &FileView, start: u64, length: u64) -> std::result::Result<(), i32> {
        let end = start + length;
        if self.task.pages == Pages::Small {
            // Small pages that are on other nodes at first take their memory from the pages of
            // these nodes, so there should be few at a time.
            for from in (start..end).step_by(EXTENT as usize) {
                self.allocate_small(view, start, from, end.min(from + EXTENT))?;
            }
            return Ok(());
        }
        self.plan.parts(self.node, start, end).try_for_each(|part| self.allocate_huge(view, start, part))
    }

    /// Allocates the small pages of the node in `from..to` of the file, and verifies them together:
    /// each call that moves pages drains the page lists of every core.
    fn allocate_small(
        &self,
        view: &FileView,
        start: u64,
        from: u64,
        to: u64,
    ) -> std::result::Result<(), i32> {
        let parts = || self.plan.parts(self.node, from, to);
        if parts().next().is_none() {
            return Ok(());
        }
        self.measure()?;
        for part in parts() {
            self.task.take(view, part.offset - start, part.offset, part.length, None)?;
        }
        let page = memory::page_size() as usize;
        let offsets = |part: PlanPart| (part.offset - start..part.offset - start + part.length).step_by(page);
        self.place(view, start, parts().flat_map(offsets))?;
        for part in parts() {
            self.tally.tally.add(part.length, 0);
            self.bytes[part.range].0.fetch_add(part.length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Allocates the huge pages of `part`, and verifies them.
    fn allocate_huge(&self, view: &FileView, start: u64, part: PlanPart) -> std::result::Result<(), i32> {
        let small = memory::page_size();
        let place = |from: u64, length: u64, step: u64| {
            self.place(view, start, (from..from + length).step_by(step as usize))
        };
        let place_small = |from, length, step| place(from, length, step).map(drop);
        // Collapsing is fast for many pages at a time.
        let step = if self.is_pool() { self.task.pages.size() } else { part.length };
        for offset in (part.offset..part.offset + part.length).step_by(step as usize) {
            let (from, length) = (offset - start, step.min(part.offset + part.length - offset));
            self.measure()?;
            let mut huge = self.task.take(view, from, offset, length, Some(&place_small))?;
            let page = if huge < length { small } else { self.task.pages.size() };
            if place(from, length, page)? && page > small {
                // The kernel may have split a huge page and moved only a part of it.
                place(from, length, small)?;
                huge = self.task.collapse_each(view, from, length, Some(&place_small))?;
                place(from, length, small)?;
            }
            self.tally.tally.add(length, huge);
        }
        self.bytes[part.range].0.fetch_add(part.length, Ordering::Relaxed);
        Ok(())
    }

    /// Moves the pages at `offsets` of the view to the node, if they are elsewhere. Returns whether
    /// it has moved any.
    fn place(
        &self,
        view: &FileView,
        start: u64,
        offsets: impl Iterator<Item = u64>,
    ) -> std::result::Result<bool, i32> {
        self.measure()?;
        if !self.has_policy {
            return Ok(false);
        }
        match place_pages(view, offsets, self.node, self.is_pool()) {
            Err(Misplaced::Query(libc::ENOSYS | libc::EPERM)) if self.is_only_node => Ok(false),
            placed => placed.map_err(|misplaced| self.tally.record(misplaced, start)),
        }
    }
}
