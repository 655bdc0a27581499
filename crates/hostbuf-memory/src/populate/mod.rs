//! Allocation of all pages of a segment before it is used.
//!
//! `MADV_POPULATE_WRITE` by several workers is as fast as touching the pages in parallel. It
//! returns an error where a touch would raise SIGBUS, and places the pages by the memory policy. A
//! process that exceeds the limit of a memory cgroup is killed. If such a limit applies to this
//! process, the workers are therefore children, and a child that the OOM killer has ended means
//! that there is not enough memory.

mod children;
mod failure;
mod fork_shared;
mod keep;
mod obtained;
mod place_pages;
mod placed;
mod placed_failure;
mod threads;
mod view;
mod work;

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, Result};
use crate::memfd;
use crate::pages::Pages;
use crate::placement::{FilePlan, PlannedRange};
use failure::{ended_for_memory, explain, worker_ended};
use hostbuf_os::cores::Cores;
use hostbuf_os::{NodeId, memory, mempolicy};
pub use obtained::ObtainedPages;
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

    /// Returns the cores of the workers.
    #[must_use]
    pub fn cores(&self) -> &Cores {
        let (Workers::Threads(cores) | Workers::Children(cores)) = self;
        cores
    }
}

/// The pages to allocate.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PageRequest<'a> {
    /// The nodes of the pages of the file. Its ranges contain the whole file.
    pub plan: &'a FilePlan,
    /// The kind of pages, which is not [`Pages::Auto`].
    pub pages: Pages,
    /// True if a huge page that is not available is an error.
    pub strict: bool,
}

impl<'a> PageRequest<'a> {
    /// Makes the request for pages of this kind, or for smaller ones if there are none.
    #[must_use]
    pub fn new(plan: &'a FilePlan, pages: Pages) -> PageRequest<'a> {
        PageRequest { plan, pages, strict: false }
    }

    /// Sets whether a huge page that is not available is an error.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> PageRequest<'a> {
        self.strict = strict;
        self
    }
}

/// Allocates all pages of `fd`: those with a placement by [`populate_placed`], and then the rest by
/// [`populate_unplaced`]. `progress` is called occasionally with the number of bytes allocated so
/// far.
///
/// # Errors
/// As both functions.
pub fn populate(
    fd: BorrowedFd<'_>,
    request: PageRequest<'_>,
    workers: Workers,
    node_cores: &dyn Fn(NodeId) -> Cores,
    progress: &mut dyn FnMut(u64),
) -> Result<ObtainedPages> {
    let mut obtained = populate_placed(fd, request, node_cores, progress)?;
    let before = request.plan.placed_bytes();
    obtained.huge += populate_unplaced(fd, request, workers, &mut |done| progress(before + done))?;
    Ok(obtained)
}

/// Allocates the pages of all ranges with a placement. Children of this process allocate them,
/// which run on the cores of their nodes as `node_cores` returns them, and the node of each page is
/// verified. Several files get their placed pages before the others, which may be anywhere.
///
/// # Errors
/// [`Error::NoSpace`] if pages ran out; [`Error::WorkerEnded`] if a signal has ended a worker;
/// [`Error::Placement`] for a placement that this kernel refuses, and for a strict demand that it
/// cannot meet.
pub fn populate_placed(
    fd: BorrowedFd<'_>,
    request: PageRequest<'_>,
    node_cores: &dyn Fn(NodeId) -> Cores,
    progress: &mut dyn FnMut(u64),
) -> Result<ObtainedPages> {
    let PageRequest { plan, pages, strict } = request;
    let nodes = plan.nodes();
    if nodes.is_empty() {
        return Ok(ObtainedPages { huge: 0, on_nodes: vec![Vec::new(); plan.ranges().len()] });
    }
    let cores = nodes.into_iter().map(|node| (node, node_cores(node))).collect();
    let length = plan.ranges().last().map_or(0, PlannedRange::end);
    let task = Task { fd: fd.as_raw_fd(), start: 0, length, pages, strict };
    let obtained = placed::run(fd, task, plan, &cores, progress)?;
    for (range, on_nodes) in plan.ranges().iter().zip(&obtained.on_nodes) {
        if plan.bytes(range) != *on_nodes {
            let requested = plan.bytes(range);
            let why = format!("the nodes have {on_nodes:?} bytes instead of {requested:?}");
            return Err(Error::Placement { action: "place memory".into(), why });
        }
    }
    // The pages are where they should be. On a host with one node they have no other place.
    if let Err(errno) = keep::keep_on_nodes(task, plan)
        && errno != libc::ENOSYS
        && !plan.nodes().iter().all(|&node| mempolicy::is_only_node(node))
    {
        let error = std::io::Error::from_raw_os_error(errno);
        tracing::warn!(%error, "automatic NUMA balancing may move placed pages");
    }
    Ok(obtained)
}

/// Allocates the pages of all ranges without a placement, by `workers`. Returns the number of bytes
/// on huge pages.
///
/// # Errors
/// As [`populate_placed`], with [`Error::Unsupported`] instead of [`Error::Placement`].
pub fn populate_unplaced(
    fd: BorrowedFd<'_>,
    request: PageRequest<'_>,
    workers: Workers,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let PageRequest { plan, pages, strict } = request;
    let (mut huge, mut before) = (0, 0);
    for range in plan.ranges().iter().filter(|range| !range.is_placed()) {
        let task = Task { fd: fd.as_raw_fd(), start: range.offset, length: range.length, pages, strict };
        huge += populate_range(fd, task, workers, &mut |done| progress(before + done))?;
        before += range.length;
    }
    Ok(huge)
}

/// Allocates the pages of a range without a placement. Returns the number of bytes on huge pages.
fn populate_range(
    fd: BorrowedFd<'_>,
    task: Task,
    workers: Workers,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let Task { length, pages, .. } = task;
    let outcome = match workers {
        Workers::Threads(cores) => threads::run(task, &cores, progress).map_err(WorkerFailure::from),
        Workers::Children(cores) => children::run(task, &cores, progress)?,
    };
    // The pages allocated so far are still allocated, and count as available.
    let taken = || memfd::allocated(fd).unwrap_or(0);
    outcome.map_err(|failure| match failure {
        WorkerFailure::Errno(errno) => explain(errno, length, pages, taken()),
        WorkerFailure::Ended { signal, for_memory: true, .. } => ended_for_memory(signal, length, taken()),
        WorkerFailure::Ended { pid, signal, .. } => worker_ended(length, pid, signal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_filter::{Refusal, refusing};
    use crate::demand::Demand;
    use crate::memfd::Backing;
    use crate::placement::{HostNodes, Placement};
    use hostbuf_os::process;
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
                let plan = FilePlan::unplaced(length);
                let request = PageRequest::new(&plan, pages);
                let ObtainedPages { huge, .. } =
                    populate(fd.as_fd(), request, workers, &|_| Cores::own(), &mut |done| last = done)
                        .unwrap();
                assert_eq!(resident(fd.as_fd()), length, "{workers:?} {pages}");
                assert!(huge <= length && last <= length);
                if pages == Pages::Small {
                    assert_eq!(huge, 0);
                }
            }
        }
    }

    /// A container without the capability SYS_NICE refuses the calls, but a host with one node has
    /// no other place for the pages. With it, the filters of Docker and Podman still refuse
    /// `move_pages`.
    #[test]
    fn a_host_with_one_node_needs_no_permission_to_place() {
        let calls = [libc::SYS_set_mempolicy, libc::SYS_mbind, libc::SYS_move_pages, libc::SYS_get_mempolicy];
        let nodes = mempolicy::allowed_nodes().expect("/proc is mounted");
        let demand = Demand::new(6 << 20, Pages::Small).placement(Placement::Node(nodes[0]));
        for refused in [&calls[..], &calls[1..], &calls[2..3]] {
            let refused: Vec<_> = refused.iter().map(|&call| Refusal::not_permitted(call)).collect();
            for pages in [Pages::Small, Pages::Transparent] {
                let plan = demand.plan(pages, &mut HostNodes::of_this_host().space()).unwrap();
                let fd = memfd::create("hostbuf-test", 6 << 20, Backing::Shmem).unwrap();
                let request = PageRequest::new(&plan, pages);
                let placed = refusing(&refused, || {
                    populate_placed(fd.as_fd(), request, &|_| Cores::own(), &mut |_| {})
                });
                match placed {
                    Ok(obtained) => assert_eq!(obtained.on_nodes, [vec![(nodes[0], 6 << 20)]]),
                    Err(error) => {
                        let why = error.to_string();
                        let named = why.contains("SYS_NICE") || why.contains("seccomp=unconfined");
                        assert!(nodes.len() > 1 && named, "{why}");
                    }
                }
            }
        }
    }

    /// The kernel keeps no status of a child if its parent ignores SIGCHLD.
    #[test]
    fn a_program_that_ignores_sigchld_gets_its_pages() {
        const CHILD: &str = "HOSTBUF_TEST_IGNORES_SIGCHLD";
        if std::env::var_os(CHILD).is_none() {
            // The disposition of a signal belongs to the whole process.
            let name = "populate::tests::a_program_that_ignores_sigchld_gets_its_pages";
            let mut own = std::process::Command::new(std::env::current_exe().unwrap());
            let outcome = own.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
            assert!(outcome.status.success(), "{outcome:?}");
            return;
        }
        ignore_sigchld();
        let fd = memfd::create("hostbuf-test", LENGTH, Backing::Shmem).unwrap();
        let plan = FilePlan::unplaced(LENGTH);
        let request = PageRequest::new(&plan, Pages::Small);
        let workers = Workers::Children(Cores::own());
        populate(fd.as_fd(), request, workers, &|_| Cores::own(), &mut |_| {}).unwrap();
        assert_eq!(resident(fd.as_fd()), LENGTH);
        // The file is too short for its plan, and the workers report that.
        let plan = FilePlan::unplaced(2 * LENGTH);
        let request = PageRequest::new(&plan, Pages::Small);
        let error = populate(fd.as_fd(), request, workers, &|_| Cores::own(), &mut |_| {}).unwrap_err();
        assert!(!error.to_string().contains("No child processes"), "{error}");
    }

    #[allow(unsafe_code, reason = "sets the disposition of a signal")]
    fn ignore_sigchld() {
        use nix::sys::signal::{SigHandler, signal};
        // SAFETY: no handler runs.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.unwrap();
    }

    const LENGTH: u64 = 64 << 20;

    #[test]
    fn a_worker_that_is_killed_is_named_with_its_signal() {
        kill_a_worker_of(&FilePlan::unplaced(LENGTH));
    }

    #[test]
    fn a_worker_of_a_node_that_is_killed_is_named_with_its_signal() {
        let demand = Demand::new(LENGTH, Pages::Small).placement(Placement::Node(NodeId(0)));
        kill_a_worker_of(&demand.plan(Pages::Small, &mut HostNodes::of_this_host().space()).unwrap());
    }

    /// Kills a worker, and checks the error. Workers that have all ended before the first look are
    /// followed by others.
    fn kill_a_worker_of(plan: &FilePlan) {
        let killed = (0..50).any(|_| has_killed_a_worker_of(plan));
        assert!(killed, "all workers have ended before they could be killed");
    }

    /// Kills the first worker, if it still runs, and checks the error. Returns whether it did.
    fn has_killed_a_worker_of(plan: &FilePlan) -> bool {
        let fd = memfd::create("hostbuf-test", LENGTH, Backing::Shmem).unwrap();
        let mut killed = None;
        let oom_kills = memory::oom_kills();
        let error = populate(
            fd.as_fd(),
            PageRequest::new(plan, Pages::Small),
            Workers::Children(Cores::own()),
            &|_| Cores::own(),
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
            Err(Error::WorkerEnded { pid, signal: libc::SIGKILL, .. }) => {
                assert_eq!(Some(pid), killed);
                true
            }
            Ok(_) if killed.is_none() => false,
            // The kernel is out of memory, perhaps because of another program.
            Err(Error::NoSpace(_)) if memory::oom_kills() != oom_kills => false,
            other => panic!("{other:?}, killed {killed:?}"),
        }
    }
}
