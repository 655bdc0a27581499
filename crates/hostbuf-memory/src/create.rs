//! The creation of memory files on the pages that they demand.

use std::os::fd::{AsFd, OwnedFd};

use crate::error::{Error, NoSpace, Result};
use crate::mapping::FileMapping;
use crate::memfd::{self, Backing};
use crate::pages::Pages;
use crate::space::{self, Demand};

/// Creates a memory file for each of `demands`, named by `names` in `/proc/PID/maps`. The files
/// have no pages yet, except that pages of the reserved pools are reserved for them. Returns each
/// file with the kind of its pages.
///
/// Another process may take pages of a pool after they were seen to be free. Demands for
/// [`Pages::Auto`] get other pages then.
///
/// # Errors
/// [`Error::NoSpace`] and [`Error::Unsupported`] as [`space::check`]; [`Error::Os`], with the
/// remedy for a limit on the length of files. After an error no file remains.
///
/// # Panics
/// If there are fewer names than demands.
pub fn create_all(demands: &[Demand], names: &[String]) -> Result<Vec<(OwnedFd, Pages)>> {
    let pages = space::resolve_all(demands);
    let chosen = |(demand, pages): (&Demand, &Pages)| {
        demand.pages == Pages::Auto && matches!(pages, Pages::Huge2M | Pages::Huge1G)
    };
    match create_on(demands, names, &pages) {
        Err(Error::NoSpace(first)) if demands.iter().zip(&pages).any(chosen) => {
            create_on(demands, names, &space::resolve_without_pools(demands))
                .map_err(|_| Error::NoSpace(first))
        }
        created => created,
    }
}

fn create_on(demands: &[Demand], names: &[String], pages: &[Pages]) -> Result<Vec<(OwnedFd, Pages)>> {
    space::check(demands, pages)?;
    let create = |(i, &pages): (usize, &Pages)| {
        let length = demands[i].pages.round_up(demands[i].size);
        let doing = format!("creating a memory file of {length} bytes on pages {pages}");
        let backing = match pages {
            Pages::Huge2M | Pages::Huge1G => Backing::Hugetlb(pages.size()),
            _ => Backing::Shmem,
        };
        let file = memfd::create(&names[i], length, backing).map_err(|e| creation_error(doing, e))?;
        if let Backing::Hugetlb(page) = backing {
            reserve(&file, length, page)?;
        }
        Ok((file, pages))
    };
    pages.iter().enumerate().map(create).collect()
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
