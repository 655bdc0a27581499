//! The parts of a piece, which are read or written at the same time.

use std::io;
use std::ops::Range;

/// The largest number of parts of a piece.
pub(super) const MAX_PARTS: usize = 8;

/// The length of a part in bytes, unless the piece has more than [`MAX_PARTS`] of that length.
const PART_BYTES: usize = 256 << 10;

/// The largest alignment of direct I/O that is used.
const ALIGNMENT: usize = 4096;

/// The parts of a piece, and how far each of them is.
pub(super) struct PieceParts {
    parts: [IoPart; MAX_PARTS],
    count: usize,
    /// The alignment that a remaining part needs to be submitted again.
    alignment: usize,
}

#[derive(Default)]
struct IoPart {
    /// The bytes of the piece that are not read or written yet.
    rest: Range<usize>,
    /// The first error.
    error: Option<i32>,
}

impl PieceParts {
    /// Divides a piece of `bytes` bytes. After a short read or write the rest of a part is
    /// submitted again, if it begins at a multiple of `alignment`.
    pub(super) fn new(bytes: usize, alignment: usize) -> PieceParts {
        let length = bytes.div_ceil(MAX_PARTS).next_multiple_of(ALIGNMENT).max(PART_BYTES);
        let part = |number: usize| {
            let start = (number * length).min(bytes);
            IoPart { rest: start..(start + length).min(bytes), error: None }
        };
        let count = bytes.div_ceil(length);
        PieceParts { parts: std::array::from_fn(part), count, alignment }
    }

    /// Returns the number of parts.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes of the piece that part `number` has not read or written yet.
    pub(super) fn rest(&self, number: usize) -> Range<usize> {
        self.parts[number].rest.clone()
    }

    /// Takes the result of an operation: a number of bytes, or a negative error number. Returns
    /// whether the rest of the part is to be submitted again.
    pub(super) fn complete(&mut self, number: usize, result: i32) -> bool {
        let part = &mut self.parts[number];
        match usize::try_from(result) {
            // The end of the file.
            Ok(0) => false,
            Ok(bytes) => {
                part.rest.start = part.rest.end.min(part.rest.start + bytes);
                !part.rest.is_empty() && part.rest.start.is_multiple_of(self.alignment)
            }
            Err(_) if matches!(-result, libc::EINTR | libc::EAGAIN) => true,
            Err(_) => {
                part.error = Some(-result);
                false
            }
        }
    }

    /// Returns the number of bytes before the first one that is not read or written.
    ///
    /// # Errors
    /// That of the first part, if it has read or written nothing.
    pub(super) fn result(&self) -> io::Result<usize> {
        let parts = &self.parts[..self.count];
        let Some(first) = parts.iter().find(|part| !part.rest.is_empty()) else {
            return Ok(parts.last().map_or(0, |part| part.rest.end));
        };
        match first.error {
            Some(error) if first.rest.start == 0 => Err(io::Error::from_raw_os_error(error)),
            _ => Ok(first.rest.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bytes: usize) -> PieceParts {
        PieceParts::new(bytes, 512)
    }

    #[test]
    fn parts_cover_a_piece() {
        for bytes in [0, 1, 512, PART_BYTES, PART_BYTES + 1, 1 << 20, (5 << 20) + 77, 64 << 20] {
            let parts = parts(bytes);
            let mut next = 0;
            for number in 0..parts.count() {
                let part = parts.rest(number);
                assert!(part.start == next && !part.is_empty() && part.start.is_multiple_of(ALIGNMENT));
                next = part.end;
            }
            assert_eq!(next, bytes);
        }
        assert_eq!((parts(1 << 20).count(), parts(64 << 20).count()), (4, MAX_PARTS));
    }

    #[test]
    fn the_result_is_that_of_one_read() {
        let mut parts = parts(4 * PART_BYTES);
        for number in [3, 0, 2] {
            assert!(!parts.complete(number, PART_BYTES as i32));
        }
        assert_eq!(parts.result().unwrap(), PART_BYTES);
        // An aligned rest is read again, another one is left to the caller.
        assert!(parts.complete(1, 1024));
        assert_eq!(parts.rest(1), PART_BYTES + 1024..2 * PART_BYTES);
        assert!(!parts.complete(1, 700));
        assert_eq!(parts.result().unwrap(), PART_BYTES + 1724);
        assert!(!parts.complete(1, (PART_BYTES - 1724) as i32));
        assert_eq!(parts.result().unwrap(), 4 * PART_BYTES);
    }

    #[test]
    fn an_error_counts_from_its_offset_on() {
        let mut parts = parts(2 * PART_BYTES);
        assert!(parts.complete(0, -libc::EAGAIN) && parts.complete(0, -libc::EINTR));
        assert!(!parts.complete(1, -libc::EIO) && !parts.complete(0, PART_BYTES as i32));
        assert_eq!(parts.result().unwrap(), PART_BYTES);
        let mut parts = self::parts(2 * PART_BYTES);
        assert!(!parts.complete(0, -libc::EIO) && !parts.complete(1, -libc::ENOMEM));
        assert_eq!(parts.result().unwrap_err().raw_os_error(), Some(libc::EIO));
        let mut parts = self::parts(2 * PART_BYTES);
        assert!(!parts.complete(0, 0) && !parts.complete(1, 0));
        assert_eq!(parts.result().unwrap(), 0);
    }
}
