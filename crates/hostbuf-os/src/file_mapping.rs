//! The question whether this process has mapped a file at an address.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use hostbuf_raw::maps;

use crate::mapping_query::mapping_at_or_after;

/// Returns whether the file of `fd` is mapped at `address` in this process, or `None` if `/proc` is
/// not mounted.
///
/// On a kernel without a query for one mapping, this reads the list of all mappings.
///
/// # Errors
/// As `fstat(2)` of `fd`, and `open(2)` and `read(2)` of `/proc/self/maps`.
pub fn is_file_mapped_at(fd: BorrowedFd<'_>, address: usize) -> io::Result<Option<bool>> {
    let list = match File::open("/proc/self/maps") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        list => list?,
    };
    let file = nix::sys::stat::fstat(fd)?;
    let device = (libc::major(file.st_dev), libc::minor(file.st_dev));
    if let Ok(found) = mapping_at_or_after(&list, address) {
        return Ok(Some(found.is_some_and(|mapping| {
            mapping.start <= address && mapping.device == device && mapping.inode == file.st_ino
        })));
    }
    is_listed(&list, address, device, file.st_ino).map(Some)
}

/// Returns whether the list has a mapping of this inode that contains `address`.
fn is_listed(list: &File, address: usize, device: (u32, u32), inode: u64) -> io::Result<bool> {
    let mut mapped = false;
    maps::each_of(list.as_raw_fd(), |mapping| {
        mapped = (mapping.start..mapping.end).contains(&address)
            && mapping.device == device
            && mapping.inode as u64 == inode;
        mapping.end <= address
    })
    .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    Ok(mapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    #[allow(unsafe_code, reason = "the test maps a file")]
    fn a_mapped_file_is_found_by_the_query_and_in_the_list() {
        let make =
            || nix::sys::memfd::memfd_create(c"mapped", nix::sys::memfd::MFdFlags::empty()).expect("memory");
        let (mapped, other) = (make(), make());
        let length = 2 * 4096;
        nix::unistd::ftruncate(&mapped, length as i64).expect("memory");
        // SAFETY: a new mapping, unmapped at the end.
        let base = unsafe {
            let fd = mapped.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let at = base as usize;
        for (fd, address, expected) in [
            (&mapped, at, true),
            (&mapped, at + length - 1, true),
            (&mapped, at + length, false),
            (&mapped, at - 1, false),
            (&mapped, 0, false),
            (&other, at, false),
        ] {
            let found = is_file_mapped_at(fd.as_fd(), address).expect("/proc is mounted");
            assert_eq!(found, Some(expected), "{:#x}", address.wrapping_sub(at));
            let file = nix::sys::stat::fstat(fd).expect("an open file");
            let device = (libc::major(file.st_dev), libc::minor(file.st_dev));
            let list = File::open("/proc/self/maps").expect("/proc is mounted");
            assert_eq!(is_listed(&list, address, device, file.st_ino).unwrap(), expected);
        }
        // SAFETY: mapped above.
        unsafe { libc::munmap(base, length) };
    }
}
