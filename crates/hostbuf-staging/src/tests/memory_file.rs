//! Memory files, as the memory of a ring and as files on tmpfs.

#![allow(unsafe_code, reason = "maps a memory file")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::RingMemory;

/// Makes a memory file, and returns it with its path.
pub(super) fn memory_file(bytes: usize) -> (File, String) {
    let file = memfd_create(c"staging", MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC);
    let file = File::from(file.expect("a memory file"));
    file.set_len(bytes as u64).expect("memory");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file, path)
}

/// A shared mapping of a memory file.
pub(super) struct MemoryFileMapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: nobody else has the mapping.
unsafe impl Send for MemoryFileMapping {}
// SAFETY: as above.
unsafe impl Sync for MemoryFileMapping {}

impl MemoryFileMapping {
    pub(super) fn new(file: &File, bytes: usize) -> MemoryFileMapping {
        let length = NonZeroUsize::new(bytes).expect("not empty");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping.
        let mapped = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) };
        MemoryFileMapping { address: mapped.expect("a mapping").cast(), bytes }
    }
}

// SAFETY: the mapping stays until it is dropped, and nobody else has it.
unsafe impl RingMemory for MemoryFileMapping {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for MemoryFileMapping {
    fn drop(&mut self) {
        // SAFETY: mapped above, and nothing refers to it any more.
        unsafe { munmap(self.address.cast(), self.bytes) }.expect("it is mapped");
    }
}
