//! A file on tmpfs that is read through a mapping.

#![allow(unsafe_code, reason = "maps a file, which other processes may change")]

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{SysconfVar, sysconf};

use super::file_system::FileSystem;

/// A mapping of a file on tmpfs. Reads copy from it, so no slot and no device ever refers to it.
///
/// If a file shrinks, an access to a page beyond its new end raises SIGBUS, which ends the process.
/// A read therefore looks at the length first, and lets the kernel populate the pages, which
/// returns an error beyond the end. A file that shrinks between that and the copy still ends the
/// process. It is safe where nobody truncates the file or punches holes into it, and proven safe
/// for a memory file with the seal `F_SEAL_SHRINK`.
#[derive(Debug)]
pub(super) struct MappedFile {
    /// The mapping, unless the file was empty.
    mapping: Option<ReadMapping>,
}

/// A mapping for reading.
#[derive(Debug)]
struct ReadMapping {
    address: NonNull<u8>,
    bytes: usize,
    /// The size of a page in bytes.
    page: usize,
}

// SAFETY: the mapping is only read, and belongs to this object.
unsafe impl Send for ReadMapping {}
// SAFETY: as above.
unsafe impl Sync for ReadMapping {}

impl MappedFile {
    /// Maps a file in its present length.
    ///
    /// # Errors
    /// The reason why it cannot be mapped: it is not on tmpfs, or that of `mmap(2)`.
    pub(super) fn new(file: &File) -> Result<MappedFile, String> {
        if !FileSystem::of(file).is_tmpfs() {
            return Err(
                "only files on tmpfs are mapped: a read error of a disk would end the process".to_owned()
            );
        }
        let bytes = file.metadata().map_err(|error| format!("fstat: {error}"))?.len();
        let Some(length) = usize::try_from(bytes).ok().and_then(NonZeroUsize::new) else {
            return Ok(MappedFile { mapping: None });
        };
        let page = sysconf(SysconfVar::PAGE_SIZE).map_err(|error| format!("sysconf: {error}"))?;
        let page = page.map_or(4096, |page| page as usize);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0) };
        let address = mapped.map_err(|error| format!("mmap: {error}"))?.cast();
        let mapping = Some(ReadMapping { address, bytes: length.get(), page });
        Ok(MappedFile { mapping })
    }

    /// Copies bytes at `offset`, and returns their number. Bytes beyond the mapping, and those of a
    /// file with holes, are read by `pread`.
    ///
    /// # Errors
    /// As `fstat(2)` and `pread(2)`.
    pub(super) fn read_at(&self, file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = file.metadata()?;
        let mapped = self.mapping.as_ref().map_or(0, |mapping| mapping.bytes as u64);
        let end = state.len().min(mapped);
        // An access to a page of a hole would allocate it, and raises SIGBUS if tmpfs is full.
        let has_holes = state.blocks().saturating_mul(512) < state.len();
        match &self.mapping {
            Some(mapping) if offset < end && !has_holes => {
                let bytes = into.len().min((end - offset) as usize);
                if mapping.populate(offset as usize, bytes) {
                    mapping.copy(&mut into[..bytes], offset as usize);
                    return Ok(bytes);
                }
            }
            _ => {}
        }
        file.read_at(into, offset)
    }
}

impl ReadMapping {
    /// Lets the kernel map the pages of a part. Returns false if it cannot, for example since the
    /// file has become shorter.
    fn populate(&self, offset: usize, bytes: usize) -> bool {
        let start = offset / self.page * self.page;
        let address = self.address.as_ptr().wrapping_add(start);
        // SAFETY: the part lies in the mapping, which the call does not change.
        let failed =
            unsafe { libc::madvise(address.cast(), bytes + offset - start, libc::MADV_POPULATE_READ) } != 0;
        // Before Linux 5.14 the kernel does not know the request.
        !failed || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }

    /// Copies a part that lies in the mapping. Other processes may change it meanwhile, so no
    /// reference to it exists.
    fn copy(&self, into: &mut [u8], offset: usize) {
        // SAFETY: the part lies in the mapping, and nobody else has the slice.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(self.address.as_ptr().add(offset), into.len()) };
    }
}

impl Drop for ReadMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `MappedFile::new`, and nothing refers to it any more.
        if let Err(error) = unsafe { munmap(self.address.cast(), self.bytes) } {
            tracing::error!("munmap of {} bytes: {error}", self.bytes);
        }
    }
}
