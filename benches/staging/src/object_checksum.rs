//! The checksum of an object, and the source that clears memory before a read.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use hostbuf_staging::{ReadAt, WriteAt};

/// The length of the parts of an object that have a sum of words each, in bytes.
const PART: u64 = 64 << 10;

/// A sink that adds up the sums of the parts of an object, each times its number: the sum differs
/// if two parts have changed places. The object is a whole number of parts.
#[derive(Debug, Default)]
pub(crate) struct ObjectChecksum(AtomicU64);

impl ObjectChecksum {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl WriteAt for ObjectChecksum {
    fn name(&self) -> String {
        "the checksum".into()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a word"));
        let sum = |part: &[u8]| part.chunks_exact(8).map(word).fold(0, u64::wrapping_add);
        let parts = from.chunks(PART as usize).zip(offset / PART + 1..);
        let sums = parts.map(|(part, number)| sum(part).wrapping_mul(number));
        self.0.fetch_add(sums.fold(0, u64::wrapping_add), Ordering::Relaxed);
        Ok(from.len())
    }
}

/// A source of zeros.
#[derive(Debug)]
pub(crate) struct Zeros;

impl ReadAt for Zeros {
    fn name(&self) -> String {
        "zeros".into()
    }

    fn read_at(&self, into: &mut [u8], _offset: u64) -> io::Result<usize> {
        into.fill(0);
        Ok(into.len())
    }
}
