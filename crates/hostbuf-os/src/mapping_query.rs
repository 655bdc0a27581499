//! Lookup of one mapping of this process by address, with the ioctl `PROCMAP_QUERY` of
//! `/proc/self/maps` (Linux 6.11).
//!
//! The time to read the whole list is proportional to the number of mappings; the time of a query
//! does not depend on it.

#![allow(unsafe_code, reason = "an ioctl gets a structure by its address")]

use std::fs::File;
use std::os::fd::AsRawFd;

use hostbuf_raw::syscall::{self as raw, Errno};

const PROCMAP_QUERY: usize = 0xc068_6611;
const VMA_SHARED: u64 = 1 << 3;
const COVERING_OR_NEXT_VMA: u64 = 1 << 4;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// A mapping as `PROCMAP_QUERY` describes it, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueriedMapping {
    /// The address of the first byte.
    pub start: usize,
    /// The address after the last byte.
    pub end: usize,
    /// True if the mapping is private (MAP_PRIVATE).
    pub private: bool,
    /// The major and the minor number of the file's device, zeros for anonymous memory.
    pub device: (u32, u32),
    /// The inode number of the file, 0 for anonymous memory.
    pub inode: u64,
}

/// Returns the mapping that contains `address`, otherwise the next one above it, otherwise `None`.
///
/// `maps` is `/proc/self/maps`, opened by this process: in a forked child it still refers to the
/// parent's address space.
///
/// # Errors
/// `ENOTTY` on a kernel without the query, and other errors of `ioctl(2)`.
pub fn mapping_at_or_after(maps: &File, address: usize) -> Result<Option<QueriedMapping>, Errno> {
    const NOENT: Errno = Errno(libc::ENOENT);
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_flags: COVERING_OR_NEXT_VMA,
        query_addr: address as u64,
        ..ProcmapQuery::default()
    };
    // SAFETY: the request reads and writes one `ProcmapQuery` of the size in `size`. No buffer for
    // names is passed.
    match unsafe { raw::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query as usize) } {
        Ok(_) => Ok(Some(QueriedMapping {
            start: query.vma_start as usize,
            end: query.vma_end as usize,
            private: query.vma_flags & VMA_SHARED == 0,
            device: (query.dev_major, query.dev_minor),
            inode: query.inode,
        })),
        Err(NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_raw::maps;

    #[test]
    fn queries_agree_with_the_list() {
        let file = File::open("/proc/self/maps").unwrap();
        if let Err(why) = mapping_at_or_after(&file, 0) {
            return eprintln!("skipped: PROCMAP_QUERY: {why:?}");
        }
        // Other tests map and unmap memory concurrently, but the mappings of the program and of the
        // stack remain.
        let mut list = Vec::new();
        maps::each(|m| {
            list.push((m.start, m.end, m.private, m.device, m.inode as u64));
            true
        })
        .unwrap();
        let here = queries_agree_with_the_list as *const () as usize;
        let local = 0u8;
        for address in [here, &raw const local as usize] {
            let found = mapping_at_or_after(&file, address).unwrap().unwrap();
            assert!(found.start <= address && address < found.end, "{found:?}");
            let found = (found.start, found.end, found.private, found.device, found.inode);
            assert!(list.contains(&found), "{found:x?} is not in {list:x?}");
        }
        assert_eq!(mapping_at_or_after(&file, 0).unwrap().unwrap().start, list[0].0);
        assert_eq!(mapping_at_or_after(&file, usize::MAX & !0xfff), Ok(None));
    }
}
