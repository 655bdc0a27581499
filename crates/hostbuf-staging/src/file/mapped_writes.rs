//! A file on tmpfs that is written through a mapping.

#![allow(unsafe_code, reason = "maps a file, which other processes may change")]

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::{Arc, RwLock};

use hostbuf_os::memory::address_space;
use hostbuf_os::per_process::PerProcess;
use hostbuf_os::poison::IgnorePoison;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The least size of a mapping in bytes. A file that grows is mapped anew at each power of two.
const LEAST_BYTES: usize = 1 << 30;
/// The least bytes that are worth a copy to the mapping.
const LEAST_COPY: usize = 16 << 10;

/// The mapping through which a file on tmpfs is written, made by the first write. `pwrite` holds
/// the lock of the file while it copies, so that several threads write no faster than one; copies
/// to a mapping run in parallel. The last byte of each write goes to `pwrite` all the same, after
/// the others: it does what else belongs to a write, such as the time of the last modification and
/// the events of inotify. If the file is too short, that byte goes first as well.
///
/// The copies are made by `process_vm_writev(2)` from this process to itself. If the file shrinks
/// meanwhile, or tmpfs is full, it returns an error where a store would raise SIGBUS. The bytes
/// then go to `pwrite`, which states the reason. They also do where the kernel or a filter of
/// system calls has no `process_vm_writev`, and where the file cannot be mapped for writing.
#[derive(Debug, Default)]
pub(super) struct MappedWrites {
    /// A forked child makes a mapping of its own, since a thread of the parent may be replacing
    /// this one.
    mapping: PerProcess<RwLock<Option<Arc<WriteMapping>>>>,
}

/// A mapping for writing that begins at the first byte of the file and may end after its last one.
#[derive(Debug)]
struct WriteMapping {
    address: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: only the kernel accesses the mapping, which belongs to this object.
unsafe impl Send for WriteMapping {}
// SAFETY: as above.
unsafe impl Sync for WriteMapping {}

impl MappedWrites {
    /// Writes bytes to `offset`, and returns their number. A file that is too short grows.
    ///
    /// # Errors
    /// As `pwrite(2)`.
    pub(super) fn write_at(&self, file: &File, from: &[u8], offset: u64) -> io::Result<usize> {
        match self.copy(file, from, offset) {
            Some(copied) => Ok(copied),
            None => file.write_at(from, offset),
        }
    }

    /// Copies bytes to the mapping. Returns None if none of them can be copied.
    fn copy(&self, file: &File, from: &[u8], offset: u64) -> Option<usize> {
        let (last, before) = from.split_last().filter(|_| from.len() >= LEAST_COPY)?;
        let at_last = offset.checked_add(before.len() as u64)?;
        let mapping = self.mapping(file, usize::try_from(at_last).ok()?.checked_add(1)?)?;
        if file.metadata().ok()?.len() <= at_last {
            // Unlike `ftruncate`, it never shortens a file that another thread has lengthened.
            file.write_all_at(&[*last], at_last).ok()?;
        }
        let copied = mapping.copy(before, offset.try_into().ok()?)?;
        if copied < before.len() {
            return Some(copied);
        }
        file.write_all_at(&[*last], at_last).ok()?;
        Some(from.len())
    }

    /// Returns a mapping of at least `end` bytes.
    fn mapping(&self, file: &File, end: usize) -> Option<Arc<WriteMapping>> {
        let is_enough = |mapping: &&Arc<WriteMapping>| mapping.bytes.get() >= end;
        let shared = self.mapping.get();
        if let Some(mapping) = shared.read().ignore_poison().as_ref().filter(is_enough) {
            return Some(mapping.clone());
        }
        let mut place = shared.write().ignore_poison();
        if place.as_ref().filter(is_enough).is_none() {
            // The old one is unmapped when the last thread that copies to it has dropped it.
            *place = Some(Arc::new(WriteMapping::new(file, end)?));
        }
        place.clone()
    }
}

impl WriteMapping {
    /// Maps a file, for at least `end` bytes. Takes nothing of a limited address space.
    fn new(file: &File, end: usize) -> Option<WriteMapping> {
        if address_space().is_some() {
            return None;
        }
        let bytes = NonZeroUsize::new(end.checked_next_power_of_two()?.max(LEAST_BYTES))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, file, 0) };
        Some(WriteMapping { address: mapped.ok()?.cast(), bytes })
    }

    /// Copies bytes to a part that lies in the mapping, and returns their number. Returns None if
    /// none of them can be copied.
    fn copy(&self, from: &[u8], offset: usize) -> Option<usize> {
        let into = self.address.as_ptr().wrapping_add(offset);
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let remote = libc::iovec { iov_base: into.cast(), iov_len: from.len() };
        let process = nix::unistd::getpid().as_raw();
        // SAFETY: the kernel reads the slice, and writes a part of the mapping, to which there are
        // no references.
        let copied =
            unsafe { libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(copied).ok().filter(|&copied| copied > 0)
    }
}

impl Drop for WriteMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no call accesses it any more.
        if let Err(error) = unsafe { munmap(self.address.cast(), self.bytes.get()) } {
            tracing::error!("munmap of {} bytes: {error}", self.bytes);
        }
    }
}
