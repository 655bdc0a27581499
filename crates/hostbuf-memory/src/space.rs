//! The check for free memory before anything is allocated.

use hostbuf_os::{Bytes, memory, process};

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
    let net = limit.available.saturating_sub(OVERHEAD);
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

/// Checks that the pool of reserved pages of `page` bytes has `length` bytes.
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
        return Ok(());
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

/// The memory that one file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// The requested size in bytes.
    pub size: u64,
    /// The requested pages.
    pub pages: Pages,
    /// True if the pages are allocated at the first touch.
    pub lazy: bool,
}

impl Demand {
    /// Makes the demand for `size` bytes, whose pages are allocated at once.
    #[must_use]
    pub const fn new(size: u64, pages: Pages) -> Demand {
        Demand { size, pages, lazy: false }
    }

    /// Sets whether the pages are allocated at the first touch.
    #[must_use]
    pub const fn lazy(self, lazy: bool) -> Demand {
        Demand { lazy, ..self }
    }
}

/// Checks that all of `demands` fit together, on the kinds of pages in `resolved`.
///
/// # Errors
/// [`Error::NoSpace`] for the first limit that is too small; [`Error::Unsupported`] for a page size
/// that the kernel does not support.
pub fn check(demands: &[Demand], resolved: &[Pages]) -> Result<()> {
    let sum = |wanted: &dyn Fn(&Demand, Pages) -> bool| -> u64 {
        let each = demands.iter().zip(resolved).filter(|(demand, pages)| wanted(demand, **pages));
        each.map(|(demand, _)| demand.pages.round_up(demand.size)).sum()
    };
    check_address_space(sum(&|_, _| true))?;
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

/// Resolves [`Pages::Auto`] for each of `demands` on this host now. Explicit demands of a pool come
/// first, then the others in their order.
#[must_use]
pub fn resolve_all(demands: &[Demand]) -> Vec<Pages> {
    resolve_within(demands, &free_in_pool)
}

/// Resolves [`Pages::Auto`] for each of `demands` as if the pools were empty.
pub(crate) fn resolve_without_pools(demands: &[Demand]) -> Vec<Pages> {
    resolve_within(demands, &|_| 0)
}

/// Resolves the pages of `demands` for pools in which `free` returns the number of free bytes for a
/// page size.
fn resolve_within(demands: &[Demand], free: &dyn Fn(u64) -> u64) -> Vec<Pages> {
    let explicit = |page: u64| -> u64 {
        let its = demands.iter().filter(|d| d.pages != Pages::Auto && d.pages.size() == page);
        its.filter(|d| d.pages != Pages::Transparent).map(|d| d.size.next_multiple_of(page)).sum()
    };
    let mut taken = [(2 << 20, explicit(2 << 20)), (1 << 30, explicit(1 << 30))];
    let mut one = |demand: &Demand| {
        let pages = resolve_one(*demand, &taken, free);
        if demand.pages == Pages::Auto {
            for (page, bytes) in taken.iter_mut().filter(|(page, _)| pages == pool_of(*page)) {
                *bytes += demand.size.next_multiple_of(*page);
            }
        }
        pages
    };
    demands.iter().map(&mut one).collect()
}

fn pool_of(page: u64) -> Pages {
    if page == 1 << 30 { Pages::Huge1G } else { Pages::Huge2M }
}

/// Returns the number of free bytes in the pool of pages of `page` bytes.
pub(crate) fn free_in_pool(page: u64) -> u64 {
    memory::huge_pool(page).map_or(0, |pool| pool.free * page)
}

fn resolve_one(demand: Demand, taken: &[(u64, u64)], free: &dyn Fn(u64) -> u64) -> Pages {
    if demand.pages != Pages::Auto {
        return demand.pages;
    }
    let pool_has = |page: u64| {
        let taken: u64 = taken.iter().filter(|(p, _)| *p == page).map(|(_, bytes)| bytes).sum();
        free(page) >= demand.size.next_multiple_of(page).saturating_add(taken)
    };
    if demand.size.is_multiple_of(1 << 30) && pool_has(1 << 30) {
        Pages::Huge1G
    } else if demand.size >= 2 << 20 && pool_has(2 << 20) {
        Pages::Huge2M
    } else if demand.size >= 2 << 20 {
        Pages::Transparent
    } else {
        Pages::Small
    }
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

    #[test]
    fn automatic_pages_are_the_largest_that_the_pools_have() {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        // The number of bytes that are free on pages of 2 MiB and of 1 GiB.
        let resolved = |sizes: &[u64], free: [u64; 2]| {
            let demands: Vec<_> =
                sizes.iter().map(|&size| Demand { size, pages: Pages::Auto, lazy: false }).collect();
            resolve_within(&demands, &|page| if page == GIB { free[1] } else { free[0] })
        };
        assert_eq!(resolved(&[2 * GIB], [2 * GIB, 2 * GIB]), [Pages::Huge1G]);
        // Pages of 1 GiB are used only for whole GiB, and only if enough of them are free.
        assert_eq!(resolved(&[GIB + MIB], [2 * GIB, 2 * GIB]), [Pages::Huge2M]);
        assert_eq!(resolved(&[2 * GIB], [2 * GIB, GIB]), [Pages::Huge2M]);
        assert_eq!(resolved(&[2 * GIB], [2 * GIB - 1, GIB]), [Pages::Transparent]);
        assert_eq!(resolved(&[2 * MIB, 2 * MIB - 1], [GIB, 0]), [Pages::Huge2M, Pages::Small]);
        assert_eq!(resolved(&[2 * MIB], [0, 0]), [Pages::Transparent]);
        // Buffers share the pools, and each takes whole pages.
        assert_eq!(resolved(&[GIB, GIB], [0, GIB]), [Pages::Huge1G, Pages::Transparent]);
        assert_eq!(resolved(&[3 * MIB, 3 * MIB], [7 * MIB, 0]), [Pages::Huge2M, Pages::Transparent]);
    }
}
