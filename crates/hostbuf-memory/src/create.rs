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
/// [`Error::NoSpace`] and [`Error::Unsupported`] as [`space::check`], and for a placement that this
/// host cannot provide; [`Error::Os`], with the remedy for a limit on the length of files. After an
/// error no file remains.
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
    let chosen = |(demand, pages): (&Demand, &Pages)| {
        demand.pages == Pages::Auto && matches!(pages, Pages::Huge2M | Pages::Huge1G)
    };
    match create_on(demands, names, &pages, space.clone()) {
        Err(Error::NoSpace(first)) if demands.iter().zip(&pages).any(chosen) => {
            create_on(demands, names, &resolve_without_pools(demands), space)
                .map_err(|_| Error::NoSpace(first))
        }
        created => created,
    }
}

fn create_on(
    demands: &[Demand],
    names: &[String],
    pages: &[Pages],
    space: Option<NodeSpace>,
) -> Result<Vec<CreatedFile>> {
    // The error of a node says more than that of the host.
    let plans = plan_all(demands, pages, space)?;
    space::check(demands, pages)?;
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

/// Plans the nodes of all pages before any is allocated.
fn plan_all(demands: &[Demand], pages: &[Pages], mut space: Option<NodeSpace>) -> Result<Vec<FilePlan>> {
    let mut none = NodeSpace::new(Vec::new());
    let plan = |(demand, &pages): (&Demand, &Pages)| {
        let nodes = if demand.is_placed() { space.as_mut() } else { Some(&mut none) };
        demand.plan(pages, nodes.expect("the caller passes the nodes for a placement"))
    };
    demands.iter().zip(pages).map(plan).collect()
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
