//! The creation of memory files on the pages that they demand.

use std::os::fd::{AsFd, OwnedFd};

use crate::demand::Demand;
use crate::error::{Error, NoSpace, Result};
use crate::mapping::FileMapping;
use crate::memfd::{self, Backing};
use crate::pages::Pages;
use crate::placement::{FilePlan, HostNodes, NodeSpace};
use crate::resolve::{resolve_all, resolve_without_pools};
use crate::space;

/// A memory file without pages yet.
#[derive(Debug)]
// Exhaustive: the caller takes it apart, and owns each part.
pub struct CreatedFile {
    /// The descriptor.
    pub file: OwnedFd,
    /// The kind of its pages, which is not [`Pages::Auto`].
    pub pages: Pages,
    /// The nodes of its pages.
    pub plan: FilePlan,
}

/// Creates a memory file for each of `demands`, named by `names` in `/proc/PID/maps`. The files
/// have no pages yet, except that pages of the reserved pools are reserved for them. `nodes` are
/// the nodes of this host, if a demand has a placement.
///
/// Another process may take pages of a pool after they were seen to be free. Demands for
/// [`Pages::Auto`] get other pages then.
///
/// # Errors
/// [`Error::NoSpace`] and [`Error::Unsupported`] as [`space::check`]; [`Error::Placement`] for a
/// placement that this host cannot provide; [`Error::Os`], with the remedy for a limit on the
/// length of files. After an error no file remains.
///
/// # Panics
/// If there are fewer names than demands, or if a demand has a placement and there are no `nodes`.
pub fn create_all(
    demands: &[Demand],
    names: &[String],
    nodes: Option<&HostNodes>,
) -> Result<Vec<CreatedFile>> {
    let space = nodes.map(HostNodes::space);
    let pages = resolve_all(demands, space.as_ref());
    match create_on(demands, names, &pages, space.clone()) {
        Err(Error::NoSpace(first)) if has_chosen_pools(demands, &pages) => {
            create_on(demands, names, &resolve_without_pools(demands), space)
                .map_err(|second| second.after(first))
        }
        created => created,
    }
}

/// Returns whether pages of a pool were chosen for a demand of [`Pages::Auto`], so that it could
/// get others. `pages` are the kinds of pages of the files.
#[must_use]
pub fn has_chosen_pools(demands: &[Demand], pages: &[Pages]) -> bool {
    let chosen = |(demand, pages): (&Demand, &Pages)| {
        demand.pages == Pages::Auto && matches!(pages, Pages::Huge2M | Pages::Huge1G)
    };
    demands.iter().zip(pages).any(chosen)
}

/// Creates memory files as [`create_all`], with pages of the pools only for demands that name them:
/// a node of a placement may have fewer pages than were seen to be free.
///
/// # Errors
/// As [`create_all`].
///
/// # Panics
/// As [`create_all`].
pub fn create_without_pools(
    demands: &[Demand],
    names: &[String],
    nodes: Option<&HostNodes>,
) -> Result<Vec<CreatedFile>> {
    create_on(demands, names, &resolve_without_pools(demands), nodes.map(HostNodes::space))
}

fn create_on(
    demands: &[Demand],
    names: &[String],
    pages: &[Pages],
    space: Option<NodeSpace>,
) -> Result<Vec<CreatedFile>> {
    // The error of a node says more than that of the host.
    let plans = plan_all(demands, pages, space)?;
    let copies: Vec<u64> = plans.iter().map(FilePlan::copied_bytes).collect();
    space::check_with_copies(demands, pages, &copies)?;
    let create = |(i, plan): (usize, FilePlan)| {
        let (pages, length) = (pages[i], demands[i].length());
        let doing = format!("creating a memory file of {length} bytes on pages {pages}");
        let backing = match pages {
            Pages::Huge2M | Pages::Huge1G => Backing::Hugetlb(pages.size()),
            _ => Backing::Shmem,
        };
        let file = memfd::create(&names[i], length, backing).map_err(|e| creation_error(doing, e))?;
        if let Backing::Hugetlb(page) = backing {
            reserve(&file, length, page)?;
        }
        Ok(CreatedFile { file, pages, plan })
    };
    plans.into_iter().enumerate().map(create).collect()
}

/// Plans the nodes of all pages before any is allocated. Pages without a placement come last, so
/// they have to fit into what is left.
fn plan_all(demands: &[Demand], pages: &[Pages], mut space: Option<NodeSpace>) -> Result<Vec<FilePlan>> {
    let before = space.clone();
    let mut none = NodeSpace::new(Vec::new());
    let plan = |(demand, &pages): (&Demand, &Pages)| {
        let nodes = if demand.is_placed() { space.as_mut() } else { Some(&mut none) };
        demand.plan(pages, nodes.expect("the caller passes the nodes for a placement"))
    };
    let plans = demands.iter().zip(pages).map(plan).collect::<Result<Vec<FilePlan>>>()?;
    let (Some(before), Some(space)) = (before, space) else { return Ok(plans) };
    let (ordinary, pools) = ([Pages::Small, Pages::Transparent], [[Pages::Huge2M], [Pages::Huge1G]]);
    for kinds in [&ordinary[..], &pools[0], &pools[1]] {
        let (mut placed, mut unplaced) = (0, 0);
        for ((demand, plan), pages) in demands.iter().zip(&plans).zip(pages) {
            // Pages of a pool are reserved for a lazy buffer too.
            if kinds.contains(pages) && !(demand.lazy && kinds == ordinary) {
                placed += plan.placed_bytes();
                unplaced += demand.length() - plan.placed_bytes();
            }
        }
        // Without a placement the limits of the whole host apply.
        if placed > 0 {
            space.check_unplaced(&before, placed, unplaced, kinds[0])?;
        }
    }
    Ok(plans)
}

/// Reserves pages of the pool for the whole file: the kernel does so when the file is mapped, and
/// keeps the reservation for the file when it is unmapped.
fn reserve(file: &OwnedFd, length: u64, page: u64) -> Result<()> {
    match FileMapping::new(file.as_fd(), 0, length, page as usize) {
        Ok(mapping) => {
            drop(mapping);
            Ok(())
        }
        Err(_) => {
            space::check_huge(length, page)?;
            // The pool has them again.
            let available = space::free_in_pool(page);
            let (limit, remedy) = ("the reserved pool".to_owned(), "use --pages auto".to_owned());
            let host = hostbuf_os::process::host_name();
            Err(Error::NoSpace(NoSpace { host, requested: length, available, limit, remedy }))
        }
    }
}

/// Returns the error of a memory file that could not be created, with the remedy for a limit on the
/// length of files.
#[must_use]
pub fn creation_error(doing: String, source: std::io::Error) -> Error {
    let remedy = if source.raw_os_error() == Some(libc::EFBIG) { " (raise `ulimit -f`)" } else { "" };
    Error::os(doing + remedy)(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand_part::DemandPart;
    use crate::placement::NodeMemory;
    use hostbuf_os::NodeId;

    /// Bytes without a placement fit only into what the placed ones have left on the nodes, and the
    /// error names both.
    #[test]
    fn bytes_without_a_placement_share_the_nodes() {
        const MIB: u64 = 1 << 20;
        let node = |node, mib| NodeMemory { huge_2m: 8 * MIB, ..NodeMemory::new(NodeId(node), mib * MIB) };
        let excluded = NodeMemory { allowed: false, ..node(2, 500) };
        let space = NodeSpace::new(vec![node(0, 64), node(1, 32), excluded]);
        let plan = |mib, rest: Demand| {
            let pages = [rest.pages; 2];
            let placed = Demand::new(mib * MIB, rest.pages).placement("0".parse().unwrap());
            plan_all(&[placed, rest], &pages, Some(space.clone())).map_err(|error| error.to_string())
        };
        assert!(plan(60, Demand::new(36 * MIB, Pages::Small)).is_ok());
        assert!(plan(60, Demand::new(500 * MIB, Pages::Small).lazy(true)).is_ok());
        let error = plan(60, Demand::new(38 * MIB, Pages::Transparent)).unwrap_err();
        for words in [
            "98 MiB requested, 96 MiB available",
            "60 MiB with a placement and 38 MiB without one",
            "node 0 64 MiB, node 1 32 MiB)",
            "request less",
        ] {
            assert!(error.contains(words), "{words}: {error}");
        }
        assert!(plan(6, Demand::new(10 * MIB, Pages::Huge2M)).is_ok());
        let error = plan(6, Demand::new(12 * MIB, Pages::Huge2M)).unwrap_err();
        assert!(error.contains("the reserved pools of pages of 2 MiB"), "{error}");
        // A part of one file is no different.
        let part =
            Demand::new(100 * MIB, Pages::Small).parts(vec![DemandPart::new(60 * MIB, "0".parse().ok())]);
        assert!(plan_all(&[part], &[Pages::Small], Some(space.clone())).is_err());
    }
}
