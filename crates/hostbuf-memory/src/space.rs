//! The check for free memory before anything is allocated.

use hostbuf_os::{Bytes, memory, process};

use crate::demand::Demand;
use crate::error::{Error, NoSpace, Result};
use crate::pages::Pages;

/// The memory that the kernel needs in addition to ordinary pages, for the index of the memory file
/// and the page tables of the process that populates it: at most one byte in 256, and a constant
/// part for that process itself.
const OVERHEAD_SHIFT: u32 = 8;
const OVERHEAD: u64 = 4 << 20;

/// Returns the number of bytes of ordinary pages that can be allocated now: whole pages, without
/// the memory that the kernel itself needs.
#[must_use]
pub fn available(limit: &memory::Limit) -> u64 {
    net_of_overhead(limit.available)
}

/// Returns the number of bytes of whole pages that `free` bytes provide, without the memory that
/// the kernel itself needs.
pub(crate) fn net_of_overhead(free: u64) -> u64 {
    let net = free.saturating_sub(OVERHEAD);
    let page = memory::page_size();
    (net - (net >> OVERHEAD_SHIFT)) / page * page
}

/// Checks that `ordinary` bytes of ordinary pages are available.
///
/// # Errors
/// [`Error::NoSpace`] with the request, the available bytes, the limit and the remedy.
pub fn check_ordinary(ordinary: u64) -> Result<()> {
    let limit = memory::tightest_limit();
    let available = available(&limit);
    if ordinary <= available {
        return Ok(());
    }
    Err(no_space(ordinary, available, &limit))
}

/// Checks that a process with the limits of this one can map `length` bytes.
///
/// # Errors
/// [`Error::NoSpace`].
pub fn check_address_space(length: u64) -> Result<()> {
    match memory::address_space() {
        Some(limit) if limit.available < length => Err(no_space(length, limit.available, &limit)),
        _ => Ok(()),
    }
}

/// Makes the error for ordinary pages that exceed `limit`.
#[must_use]
pub fn no_space(requested: u64, available: u64, limit: &memory::Limit) -> Error {
    Error::NoSpace(NoSpace {
        host: process::host_name(),
        requested,
        available,
        limit: format!("{} of {}", limit.name, Bytes(limit.limit)),
        remedy: limit.remedy.clone(),
    })
}

/// Checks that the pool of reserved pages of `page` bytes has `length` bytes, and that no hugetlb
/// cgroup of this process allows less.
///
/// # Errors
/// [`Error::Unsupported`] if the kernel has no pages of this size; [`Error::NoSpace`] if the pool
/// is too small.
pub fn check_huge(length: u64, page: u64) -> Result<()> {
    let Some(pool) = memory::huge_pool(page) else {
        return Err(Error::Unsupported {
            what: format!("a page size of {}", Bytes(page)),
            why: format!(
                "the kernel on {} has no pages of this size; use --pages auto",
                process::host_name()
            ),
        });
    };
    if pool.free * page >= length {
        return match memory::huge_page_limits(page).tightest() {
            Some(limit) if limit.available < length => Err(no_space(length, limit.available, &limit)),
            _ => Ok(()),
        };
    }
    Err(Error::NoSpace(NoSpace {
        host: process::host_name(),
        requested: length,
        available: pool.free * page,
        limit: format!("the reserved pool of {} pages of {}", pool.total, Bytes(page)),
        remedy: format!(
            "reserve more (root: echo {} > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages), or use --pages auto",
            pool.total + (length - pool.free * page).div_ceil(page),
            page / 1024
        ),
    }))
}

/// Checks that all of `demands` fit together, on the kinds of pages in `resolved`.
///
/// # Errors
/// [`Error::NoSpace`] for the first limit that is too small; [`Error::Unsupported`] for a page size
/// that the kernel does not support.
pub fn check(demands: &[Demand], resolved: &[Pages]) -> Result<()> {
    check_with_copies(demands, resolved, &[])
}

/// Checks as [`check`], with the memory of copies on NUMA nodes. `copies` has their bytes for each
/// of `demands`, or is empty.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_with_copies(demands: &[Demand], resolved: &[Pages], copies: &[u64]) -> Result<()> {
    let copies = copies.iter().copied().chain(std::iter::repeat(0));
    let each: Vec<_> = demands.iter().zip(resolved).zip(copies).collect();
    let sum = |wanted: &dyn Fn(&Demand, Pages) -> bool| -> u64 {
        let each = each.iter().filter(|((demand, pages), _)| wanted(demand, **pages));
        each.map(|((demand, _), copies)| demand.length().saturating_add(*copies)).sum()
    };
    // Copies are mapped over the original pages, so they need no addresses.
    check_address_space(demands.iter().map(Demand::length).sum())?;
    let ordinary = sum(&|demand, pages| !demand.lazy && matches!(pages, Pages::Small | Pages::Transparent));
    if ordinary > 0 {
        check_ordinary(ordinary)?;
    }
    for pool in [Pages::Huge2M, Pages::Huge1G] {
        // A lazy buffer uses no page of the pool yet, but mmap reserves its pages.
        let requested = sum(&|_, pages| pages == pool);
        if requested > 0 {
            check_huge(requested, pool.size())?;
        }
    }
    Ok(())
}

/// Returns the number of bytes that this process can get from the pool of pages of `page` bytes.
pub(crate) fn free_in_pool(page: u64) -> u64 {
    let free = memory::huge_pool(page).map_or(0, |pool| pool.free * page);
    memory::huge_page_limits(page).tightest().map_or(free, |limit| free.min(limit.available))
}

/// Returns the limit of a hugetlb cgroup because of which this process gets no page of `page` bytes
/// now, if there is one.
pub(crate) fn exhausted_huge_limit(page: u64) -> Option<memory::Limit> {
    memory::huge_page_limits(page).in_use.filter(|limit| limit.available < page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_for_the_available_bytes_is_accepted() {
        let limit = memory::tightest_limit();
        let available = available(&limit);
        assert!(available > 0 && available < limit.available);
        // Other processes allocate memory meanwhile, so the request is a little less than the exact
        // number.
        check_ordinary(available - available / 8).unwrap();
        let Err(Error::NoSpace(NoSpace { requested, available, .. })) = check_ordinary(1 << 50) else {
            panic!()
        };
        assert!(requested == 1 << 50 && available < requested);
    }
}
