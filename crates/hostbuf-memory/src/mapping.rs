//! A shared mapping of a part of a file, at an address of the kernel's choice.

#![allow(unsafe_code, reason = "maps and unmaps memory files")]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// A part of a file, mapped at an aligned address. Dropping it unmaps the part.
#[derive(Debug)]
pub struct FileMapping {
    area: *mut libc::c_void,
    area_length: usize,
    at: *mut libc::c_void,
    length: usize,
}

/// The step of the mapping that the kernel rejected, with its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a mapping needs addresses and a file, and nothing else.
pub enum MappingRefused {
    /// There is no free address range.
    Addresses(i32),
    /// The file cannot be mapped there.
    File(i32),
}

// SAFETY: the mapping stays until drop, whatever thread owns it. This type does not access its
// bytes.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `length` bytes of `fd` from `offset` on, at a multiple of `align`, for reading and
    /// writing.
    ///
    /// # Errors
    /// Returns [`MappingRefused`]; nothing stays mapped.
    pub fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        align: usize,
    ) -> Result<FileMapping, MappingRefused> {
        FileMapping::of_raw(fd.as_raw_fd(), offset, length, align)
    }

    /// Maps a part of a file as [`new`](FileMapping::new) does, for reading only.
    ///
    /// # Errors
    /// Returns [`MappingRefused`]; nothing stays mapped.
    pub fn read_only(
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        align: usize,
    ) -> Result<FileMapping, MappingRefused> {
        FileMapping::with_protection(fd.as_raw_fd(), offset, length, align, libc::PROT_READ)
    }

    /// Maps a part of an open file as [`new`](FileMapping::new) does.
    pub(crate) fn of_raw(
        fd: RawFd,
        offset: u64,
        length: u64,
        align: usize,
    ) -> Result<FileMapping, MappingRefused> {
        FileMapping::with_protection(fd, offset, length, align, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn with_protection(
        fd: RawFd,
        offset: u64,
        length: u64,
        align: usize,
        protection: i32,
    ) -> Result<FileMapping, MappingRefused> {
        let area_length = length as usize + align;
        // SAFETY: a new private mapping without access, to find an aligned range.
        let area = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), area_length, libc::PROT_NONE, flags, -1, 0)
        };
        if area == libc::MAP_FAILED {
            return Err(MappingRefused::Addresses(nix::errno::Errno::last_raw()));
        }
        let at = (area as usize).next_multiple_of(align) as *mut libc::c_void;
        let mapping = FileMapping { area, area_length, at, length: length as usize };
        // SAFETY: inside the new area, which nothing else uses.
        let mapped = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            libc::mmap(at, length as usize, protection, flags, fd, offset as libc::off_t)
        };
        if mapped == libc::MAP_FAILED {
            return Err(MappingRefused::File(nix::errno::Errno::last_raw()));
        }
        Ok(mapping)
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> usize {
        self.at as usize
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping has at least one byte")]
    pub fn len(&self) -> u64 {
        self.length as u64
    }

    /// Passes an advice about a part to the kernel. `advice` must not discard anything.
    ///
    /// # Errors
    /// The errno of `madvise(2)`.
    ///
    /// # Panics
    /// If the part is not inside the mapping.
    pub fn advise(&self, from: u64, length: u64, advice: i32) -> Result<(), i32> {
        assert!(from.checked_add(length).is_some_and(|end| end <= self.length as u64));
        let at = self.at.wrapping_byte_add(from as usize);
        // SAFETY: inside the mapping.
        if unsafe { libc::madvise(at, length as usize, advice) } == 0 {
            Ok(())
        } else {
            Err(nix::errno::Errno::last_raw())
        }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: new() mapped this area, and its user has ended all use of it.
        unsafe { libc::munmap(self.area, self.area_length) };
    }
}
