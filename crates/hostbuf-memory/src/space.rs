//! Whether there is room, asked before anything is touched.

use crate::buffer::options::{Options, Pages};
use crate::error::{Bytes, Error, Result};
use crate::os::{memory, process};

/// What taking ordinary pages costs the kernel beside them (the index of the memory file and the page tables of the
/// process that takes them): at most one byte in 256, and a little for that process itself.
const OVERHEAD_SHIFT: u32 = 8;
const OVERHEAD: u64 = 4 << 20;

/// How many bytes of ordinary pages can be taken now, whole pages, with the kernel's own cost set aside.
#[must_use]
pub fn available(limit: &memory::Limit) -> u64 {
    let net = limit.available.saturating_sub(OVERHEAD);
    let page = memory::page_size();
    (net - (net >> OVERHEAD_SHIFT)) / page * page
}

/// Checks that `ordinary` bytes of ordinary pages are there.
///
/// # Errors
/// [`Error::NoSpace`] with what was asked, what is available, whose limit it is and what to do.
pub fn check_ordinary(ordinary: u64) -> Result<()> {
    let limit = memory::tightest();
    let available = available(&limit);
    if ordinary <= available {
        return Ok(());
    }
    Err(no_space(ordinary, available, &limit))
}

/// Checks that a process which is limited as this one can map `length` bytes at all.
///
/// # Errors
/// [`Error::NoSpace`].
pub fn check_address_space(length: u64) -> Result<()> {
    match memory::address_space() {
        Some(limit) if limit.available < length => Err(no_space(length, limit.available, &limit)),
        _ => Ok(()),
    }
}

/// The error for ordinary pages that `limit` does not give.
#[must_use]
pub fn no_space(asked: u64, available: u64, limit: &memory::Limit) -> Error {
    Error::NoSpace {
        host: process::host_name(),
        asked,
        available,
        limit: format!("{} of {}", limit.name, Bytes(limit.limit)),
        remedy: limit.remedy.clone(),
    }
}

/// Checks that the pool of reserved pages of `page` bytes has `length` bytes.
///
/// # Errors
/// [`Error::Unsupported`] when the kernel has no pages of this size; [`Error::NoSpace`] when the pool is too small.
pub fn check_huge(length: u64, page: u64) -> Result<()> {
    let Some(pool) = memory::huge_pool(page) else {
        return Err(Error::Unsupported {
            what: format!("pages of {}", Bytes(page)),
            why: format!("the kernel on {} has none of this size; use --pages auto", process::host_name()),
        });
    };
    if pool.free * page >= length {
        return Ok(());
    }
    Err(Error::NoSpace {
        host: process::host_name(),
        asked: length,
        available: pool.free * page,
        limit: format!("the reserved pool of {} pages of {}", pool.total, Bytes(page)),
        remedy: format!(
            "reserve more (root: echo {} > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages), or use --pages auto",
            pool.total + (length - pool.free * page).div_ceil(page),
            page / 1024
        ),
    })
}

/// Which pages [`Pages::Auto`] means for each of `buffers` on this host now. What is demanded of a pool comes first,
/// then whoever is named first.
#[must_use]
pub fn resolve_all(buffers: &[Options]) -> Vec<Pages> {
    resolve_within(buffers, &free_in_pool)
}

/// Resolves the pages of `buffers` for pools in which `free` says how many bytes are free, by the size of their pages.
fn resolve_within(buffers: &[Options], free: &dyn Fn(u64) -> u64) -> Vec<Pages> {
    let demanded = |page: u64| -> u64 {
        let its = buffers.iter().filter(|o| o.pages != Pages::Auto && o.pages.size() == page);
        its.filter(|o| o.pages != Pages::Transparent).map(|o| o.size.next_multiple_of(page)).sum()
    };
    let mut taken = [(2 << 20, demanded(2 << 20)), (1 << 30, demanded(1 << 30))];
    let mut one = |options: &Options| {
        let pages = resolve_one(options, &taken, free);
        if options.pages == Pages::Auto {
            for (page, bytes) in taken.iter_mut().filter(|(page, _)| pages == pool_of(*page)) {
                *bytes += options.size.next_multiple_of(*page);
            }
        }
        pages
    };
    buffers.iter().map(&mut one).collect()
}

/// The same for a buffer that is alone.
#[must_use]
pub fn resolve(options: &Options) -> Pages {
    resolve_one(options, &[], &free_in_pool)
}

fn pool_of(page: u64) -> Pages {
    if page == 1 << 30 { Pages::Huge1G } else { Pages::Huge2M }
}

/// Returns how many bytes are free in the pool of pages of `page` bytes.
fn free_in_pool(page: u64) -> u64 {
    memory::huge_pool(page).map_or(0, |pool| pool.free * page)
}

fn resolve_one(options: &Options, taken: &[(u64, u64)], free: &dyn Fn(u64) -> u64) -> Pages {
    if options.pages != Pages::Auto {
        return options.pages;
    }
    let pool_has = |page: u64| {
        let taken: u64 = taken.iter().filter(|(p, _)| *p == page).map(|(_, bytes)| bytes).sum();
        free(page) >= options.size.next_multiple_of(page).saturating_add(taken)
    };
    if options.size.is_multiple_of(1 << 30) && pool_has(1 << 30) {
        Pages::Huge1G
    } else if options.size >= 2 << 20 && pool_has(2 << 20) {
        Pages::Huge2M
    } else if options.size >= 2 << 20 {
        Pages::Transparent
    } else {
        Pages::Small
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_to_be_available_is_accepted() {
        let limit = memory::tightest();
        let available = available(&limit);
        assert!(available > 0 && available < limit.available);
        // Others take memory meanwhile, so a little less than the exact figure.
        check_ordinary(available - available / 8).unwrap();
        let Err(Error::NoSpace { asked, available, .. }) = check_ordinary(1 << 50) else { panic!() };
        assert!(asked == 1 << 50 && available < asked);
    }

    #[test]
    fn automatic_pages_are_the_largest_that_the_pools_have() {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        // How much is free on pages of 2 MiB and of 1 GiB.
        let resolved = |sizes: &[u64], free: [u64; 2]| {
            let buffers: Vec<_> = sizes.iter().map(|&size| Options::new(size)).collect();
            resolve_within(&buffers, &|page| if page == GIB { free[1] } else { free[0] })
        };
        assert_eq!(resolved(&[2 * GIB], [2 * GIB, 2 * GIB]), [Pages::Huge1G]);
        // Pages of 1 GiB are for whole GiB only, and for as many as are free.
        assert_eq!(resolved(&[GIB + MIB], [2 * GIB, 2 * GIB]), [Pages::Huge2M]);
        assert_eq!(resolved(&[2 * GIB], [2 * GIB, GIB]), [Pages::Huge2M]);
        assert_eq!(resolved(&[2 * GIB], [2 * GIB - 1, GIB]), [Pages::Transparent]);
        assert_eq!(resolved(&[2 * MIB, 2 * MIB - 1], [GIB, 0]), [Pages::Huge2M, Pages::Small]);
        assert_eq!(resolved(&[2 * MIB], [0, 0]), [Pages::Transparent]);
        // Buffers share the pools: each takes whole pages.
        assert_eq!(resolved(&[GIB, GIB], [0, GIB]), [Pages::Huge1G, Pages::Transparent]);
        assert_eq!(resolved(&[3 * MIB, 3 * MIB], [7 * MIB, 0]), [Pages::Huge2M, Pages::Transparent]);
    }
}
