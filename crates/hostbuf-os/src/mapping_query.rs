//! Lookup of one mapping of this process by address, with the ioctl `PROCMAP_QUERY` of
//! `/proc/self/maps` (Linux 6.11).
//!
//! The time to read the whole list is proportional to the number of mappings; the time of a query
//! does not depend on it.

#![allow(unsafe_code, reason = "an ioctl gets a structure by its address")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use hostbuf_raw::maps;
use hostbuf_raw::syscall::{self as raw, Errno};

use crate::fork_guard::ForkGuard;

const PROCMAP_QUERY: usize = 0xc068_6611;
const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 1 << 1;
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
    /// True if this process may read it.
    pub readable: bool,
    /// True if this process may write to it.
    pub writable: bool,
    /// True if the mapping is private (MAP_PRIVATE).
    pub private: bool,
    /// The offset of the first byte in the file, in bytes.
    pub offset: u64,
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
            readable: query.vma_flags & VMA_READABLE != 0,
            writable: query.vma_flags & VMA_WRITABLE != 0,
            private: query.vma_flags & VMA_SHARED == 0,
            offset: query.vma_offset,
            device: (query.dev_major, query.dev_minor),
            inode: query.inode,
        })),
        Err(NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The mappings of this process, looked up by address: by the query if the kernel has it, otherwise
/// in the list.
///
/// It belongs to the process that opened it. A forked child opens its own.
#[derive(Debug)]
pub struct ProcessMaps {
    list: File,
    fork_guard: ForkGuard,
}

impl ProcessMaps {
    /// Opens the list of this process.
    ///
    /// # Errors
    /// As `open(2)` of `/proc/self/maps`: `NotFound` if `/proc` is not mounted.
    pub fn open() -> io::Result<ProcessMaps> {
        Ok(ProcessMaps { list: File::open("/proc/self/maps")?, fork_guard: ForkGuard::current() })
    }

    /// Returns the mapping that contains `address`, otherwise the next one above it, otherwise
    /// `None`.
    ///
    /// # Errors
    /// As `open(2)` and `read(2)` of `/proc/self/maps`, and an error of the kind `Unsupported` in a
    /// forked child.
    pub fn at_or_after(&self, address: usize) -> io::Result<Option<QueriedMapping>> {
        if !self.fork_guard.is_current() {
            let why = "the list of mappings belongs to the parent of this process";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        match mapping_at_or_after(&self.list, address) {
            Ok(found) => Ok(found),
            // The kernel has no query, or the program has closed the descriptor.
            Err(_) => listed_at_or_after(address),
        }
    }
}

/// Returns the mapping that contains `address`, otherwise the next one above it, from a new reading
/// of the list.
fn listed_at_or_after(address: usize) -> io::Result<Option<QueriedMapping>> {
    let mut found = None;
    maps::each(|m| {
        if m.end > address {
            found = Some(QueriedMapping {
                start: m.start,
                end: m.end,
                readable: m.readable,
                writable: m.writable,
                private: m.private,
                offset: m.offset,
                device: m.device,
                inode: m.inode as u64,
            });
        }
        found.is_none()
    })
    .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_agree_with_the_list() {
        let file = File::open("/proc/self/maps").unwrap();
        if let Err(why) = mapping_at_or_after(&file, 0) {
            return eprintln!("skipped: PROCMAP_QUERY: {why:?}");
        }
        // Other tests map and unmap memory concurrently, but the mappings of the program and of the
        // stack remain.
        let here = queries_agree_with_the_list as *const () as usize;
        let local = 0u8;
        for address in [here, &raw const local as usize] {
            let found = mapping_at_or_after(&file, address).unwrap().unwrap();
            assert!(found.start <= address && address < found.end, "{found:?}");
            assert_eq!(listed_at_or_after(address).unwrap(), Some(found));
        }
        assert_eq!(listed_at_or_after(0).unwrap(), mapping_at_or_after(&file, 0).unwrap());
        assert_eq!(listed_at_or_after(usize::MAX & !0xfff).unwrap(), None);
        assert_eq!(mapping_at_or_after(&file, usize::MAX & !0xfff), Ok(None));
    }
    #[test]
    #[allow(unsafe_code, reason = "the test maps a file, and forks")]
    fn a_mapped_file_has_its_offset_and_rights_in_its_own_process_only() {
        let file = nix::sys::memfd::memfd_create(c"part", nix::sys::memfd::MFdFlags::empty()).unwrap();
        nix::unistd::ftruncate(&file, 3 * 4096).unwrap();
        // SAFETY: a new mapping, unmapped at the end.
        let base = unsafe {
            let (fd, flags) = (file.as_raw_fd(), libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, fd, 2 * 4096)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let maps = ProcessMaps::open().unwrap();
        let at = base as usize;
        for found in [maps.at_or_after(at + 5), listed_at_or_after(at + 5)] {
            let found = found.unwrap().unwrap();
            assert_eq!((found.start, found.end, found.offset), (at, at + 4096, 2 * 4096));
            assert!(found.readable && !found.writable && !found.private);
        }
        // SAFETY: the child only compares and ends.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Parent { child } => {
                let ended = nix::sys::wait::waitpid(child, None).unwrap();
                assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
            nix::unistd::ForkResult::Child => {
                let wrong = maps.at_or_after(at).is_ok()
                    || !ProcessMaps::open()
                        .and_then(|own| own.at_or_after(at))
                        .is_ok_and(|found| found.is_some());
                // SAFETY: runs no exit handler of the parent.
                unsafe { libc::_exit(i32::from(wrong)) }
            }
        }
        // SAFETY: mapped above.
        unsafe { libc::munmap(base, 4096) };
    }
}
