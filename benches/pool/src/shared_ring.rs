//! Frames in shared memory without a pool: slots of a memory file, used in turn, as transports with
//! POSIX shared memory have them.

#![allow(unsafe_code, reason = "makes slices of a mapping")]

use std::os::fd::{AsFd, OwnedFd};

use hostbuf_memory::FileMapping;
use hostbuf_memory::memfd::{self, Backing};

use hostbuf_bench_pool::FRAME;

/// The number of slots.
const SLOTS: usize = 8;
/// The distance of the slots.
const SLOT: usize = FRAME.next_multiple_of(4096);

/// A memory file with slots, mapped.
pub(crate) struct SharedRing {
    mapping: FileMapping,
}

impl SharedRing {
    /// The number of bytes of the file.
    pub(crate) const BYTES: usize = SLOTS * SLOT;

    /// Creates the file, for this process and its children.
    pub(crate) fn create() -> Result<OwnedFd, String> {
        let file = memfd::create("bench-ring", SharedRing::BYTES as u64, Backing::Shmem);
        file.map_err(|error| error.to_string())
    }

    /// Maps the file for reading and writing, as the process that made it and its consumers do.
    pub(crate) fn map(file: &OwnedFd) -> Result<SharedRing, String> {
        let mapping = FileMapping::new(file.as_fd(), 0, SharedRing::BYTES as u64, 4096);
        Ok(SharedRing { mapping: mapping.map_err(|error| format!("{error:?}"))? })
    }

    /// Returns the address of the first slot.
    pub(crate) fn start(&self) -> usize {
        self.mapping.start()
    }

    /// Returns the frame with the number `number`.
    pub(crate) fn frame(&self, number: u64) -> *mut [u8] {
        let slot = number as usize % SLOTS;
        std::ptr::slice_from_raw_parts_mut((self.start() + slot * SLOT) as *mut u8, FRAME)
    }

    /// Writes the frame with the number `number`.
    pub(crate) fn write(&mut self, number: u64, write: impl FnOnce(&mut [u8])) {
        // SAFETY: mapped; the consumer reads a slot only between its message and the next request.
        write(unsafe { &mut *self.frame(number) });
    }

    /// Reads the frame with the number `number`.
    pub(crate) fn read<T>(&self, number: u64, read: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: as above.
        read(unsafe { &*self.frame(number) })
    }
}
