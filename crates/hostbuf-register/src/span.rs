//! Address ranges of this process, and the access of a device to them.

use std::fmt;
use std::ops::BitOr;

/// A range of addresses of this process, of at least one byte and without wrap-around. It need not
/// be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    start: usize,
    length: usize,
}

impl Span {
    /// Makes a range of `length` bytes from `start`.
    ///
    /// # Errors
    /// [`InvalidSpan`] for no bytes, the null address, or an end beyond the address space.
    #[inline]
    pub fn new(start: usize, length: usize) -> Result<Span, InvalidSpan> {
        if length == 0 || start == 0 || start.checked_add(length).is_none() {
            return Err(InvalidSpan { start, length });
        }
        Ok(Span { start, length })
    }

    /// Makes the range of the bytes of a slice.
    ///
    /// # Errors
    /// [`InvalidSpan`] for an empty slice.
    pub fn of<T>(slice: &[T]) -> Result<Span, InvalidSpan> {
        Span::new(slice.as_ptr() as usize, size_of_val(slice))
    }

    /// Returns the first address.
    #[must_use]
    #[inline]
    pub const fn start(self) -> usize {
        self.start
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a span has at least one byte")]
    #[inline]
    pub const fn len(self) -> usize {
        self.length
    }

    /// Returns the address after the last byte.
    #[must_use]
    #[inline]
    pub const fn end(self) -> usize {
        self.start + self.length
    }

    /// Returns whether the range contains all of `other`.
    #[must_use]
    #[inline]
    pub fn contains(self, other: Span) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Returns whether both ranges have a byte in common.
    #[must_use]
    #[inline]
    pub fn overlaps(self, other: Span) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Returns the smallest range that contains both.
    #[must_use]
    pub fn hull(self, other: Span) -> Span {
        let start = self.start.min(other.start);
        Span { start, length: self.end().max(other.end()) - start }
    }

    /// Returns the whole pages of `page` bytes that the range touches.
    #[must_use]
    pub fn pages(self, page: usize) -> Span {
        let start = self.start / page * page;
        Span { start, length: self.end().div_ceil(page).saturating_mul(page) - start }
    }
}

/// The error for an address and a length that are no range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidSpan {
    /// The address.
    pub start: usize,
    /// The number of bytes.
    pub length: usize,
}

impl fmt::Display for InvalidSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {:#x} are not a range of memory", self.length, self.start)
    }
}

impl std::error::Error for InvalidSpan {}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end())
    }
}

/// The access of a device to registered memory. Local reading is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(u8);

impl Access {
    /// The device reads on behalf of this process: the source of sends and of copies to a GPU.
    pub const READ: Access = Access(0);
    /// The device writes on behalf of this process: the target of receives and of copies from a
    /// GPU.
    pub const WRITE: Access = Access(1);
    /// A peer may read.
    pub const REMOTE_READ: Access = Access(2);
    /// A peer may write; the device needs [`WRITE`](Access::WRITE) for it, which this includes.
    pub const REMOTE_WRITE: Access = Access(4 | 1);
    /// A peer may use atomic operations, which write.
    pub const REMOTE_ATOMIC: Access = Access(8 | 1);
    /// Everything.
    pub const ALL: Access = Access(15);

    /// Returns whether all of `other` is allowed.
    #[must_use]
    #[inline]
    pub fn allows(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the access includes any kind of writing.
    #[must_use]
    #[inline]
    pub fn writes(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns the bit mask, for records in shared memory.
    #[must_use]
    #[inline]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns the access of a bit mask from [`bits`](Access::bits); other bits are ignored.
    #[must_use]
    #[inline]
    pub fn from_bits(bits: u8) -> Access {
        Access(bits & Access::ALL.0)
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("read")?;
        for (bit, name) in [(1, "write"), (2, "remote read"), (4, "remote write"), (8, "remote atomic")] {
            if self.0 & bit != 0 {
                write!(f, ", {name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_spans_are_exact() {
        let span = |start, length| Span::new(start, length).unwrap();
        assert!(Span::new(0, 1).is_err() && Span::new(1, 0).is_err() && Span::new(usize::MAX, 2).is_err());
        let a = span(4096, 4096);
        assert!(a.contains(a) && a.contains(span(8191, 1)) && !a.contains(span(8191, 2)));
        assert!(a.overlaps(span(1, 4096)) && !a.overlaps(span(1, 4095)) && !a.overlaps(span(8192, 1)));
        assert_eq!(span(4097, 1).pages(4096), a);
        assert_eq!(span(8191, 2).pages(4096), span(4096, 8192));
    }

    #[test]
    fn remote_write_includes_write() {
        assert!(Access::REMOTE_WRITE.allows(Access::WRITE) && Access::ALL.allows(Access::REMOTE_ATOMIC));
        assert!(!Access::WRITE.allows(Access::REMOTE_WRITE) && Access::READ.allows(Access::READ));
        assert!(!Access::REMOTE_READ.writes() && Access::REMOTE_ATOMIC.writes());
        assert_eq!((Access::WRITE | Access::REMOTE_READ).to_string(), "read, write, remote read");
    }
}
