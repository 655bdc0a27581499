//! A ring beside the file on a disk that it reads or writes.

use std::fmt;

use hostbuf_staging::{Backend, CopyDevice, File, FileOptions, Ring, RingOptions};

use crate::fio::FioOptions;

/// The length of an operation of the backend `uring` in KiB.
const URING_BLOCK_KIB: usize = 256;

/// A ring, and the file that it reads or writes.
pub(crate) struct DiskRing<D: CopyDevice> {
    pub(crate) ring: Ring<D>,
    pub(crate) file: File,
}

impl<D: CopyDevice> DiskRing<D> {
    /// Opens the file for a ring.
    ///
    /// # Errors
    /// See [`FileOptions::open`].
    pub(crate) fn open(ring: Ring<D>, options: FileOptions, path: &str) -> std::io::Result<DiskRing<D>> {
        Ok(DiskRing { ring, file: options.open(path)? })
    }

    /// Returns the options with which fio has operations of the same length, and as many of them
    /// in flight.
    pub(crate) fn fio_options(&self) -> FioOptions {
        let RingOptions { piece_bytes, workers, .. } = self.ring.options();
        let piece_kib = piece_bytes >> 10;
        match self.file.backend().backend {
            Backend::Uring => FioOptions {
                block_kib: URING_BLOCK_KIB,
                depth: workers * piece_kib.div_ceil(URING_BLOCK_KIB),
            },
            _ => FioOptions { block_kib: piece_kib, depth: workers },
        }
    }
}

impl<D: CopyDevice> fmt::Display for DiskRing<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RingOptions { slots, slot_bytes, workers, .. } = self.ring.options();
        let backend = self.file.backend().backend;
        write!(f, "{backend}, {workers} threads, {slots} slots of {} MiB", slot_bytes >> 20)
    }
}

/// Returns the shapes of the rings.
pub(crate) fn shapes() -> Vec<RingOptions> {
    let shape = |(workers, slots)| RingOptions::new().workers(workers).slots(slots);
    [(2, 4), (4, 4), (8, 4), (8, 8)].map(shape).to_vec()
}
