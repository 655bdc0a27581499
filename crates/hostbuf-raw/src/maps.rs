//! The mappings of this process, read from `/proc/self/maps` without allocating: the parser also
//! runs before `main`, in programs whose allocator is not initialised yet.

use crate::syscall::{self, Errno};

/// One line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Mapped<'a> {
    /// The first address.
    pub start: usize,
    /// The address behind the last byte.
    pub end: usize,
    /// True if this process may read it.
    pub readable: bool,
    /// True if this process may write to it.
    pub writable: bool,
    /// True if the mapping is private (MAP_PRIVATE).
    pub private: bool,
    /// The offset of the first byte in the file, in bytes.
    pub offset: u64,
    /// The major and the minor number of the file's device, zeros for anonymous memory.
    pub device: (u32, u32),
    /// The inode number of the file, 0 for anonymous memory.
    pub inode: usize,
    /// The name of the mapping: a path, `[heap]`, or empty for anonymous memory. Cut at
    /// [`PATH_MAX`] bytes.
    pub path: &'a [u8],
}

/// The maximum length of a mapping's path in bytes. A longer path is cut.
pub const PATH_MAX: usize = 160;

/// A parser of the text of `/proc/self/maps`, in pieces of any size.
pub struct Parser {
    line: [u8; 128 + PATH_MAX],
    length: usize,
}

impl Default for Parser {
    fn default() -> Self {
        Parser { line: [0; 128 + PATH_MAX], length: 0 }
    }
}

impl Parser {
    /// Parses the next piece of text and calls `each` for every line that it completes, until
    /// `each` returns false. Returns false if `each` did.
    pub fn feed(&mut self, piece: &[u8], each: &mut impl FnMut(Mapped<'_>) -> bool) -> bool {
        for &byte in piece {
            if byte == b'\n' {
                let go_on = parse_line(&self.line[..self.length]).is_none_or(&mut *each);
                self.length = 0;
                if !go_on {
                    return false;
                }
            } else if self.length < self.line.len() {
                self.line[self.length] = byte;
                self.length += 1;
            }
        }
        true
    }
}

fn hex(text: &[u8]) -> Option<(usize, &[u8])> {
    let digits = text.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    if digits == 0 || digits > 16 {
        return None;
    }
    let value = text[..digits].iter().fold(0usize, |value, &b| {
        let digit = if b.is_ascii_digit() { b - b'0' } else { (b | 0x20) - b'a' + 10 };
        value << 4 | usize::from(digit)
    });
    Some((value, &text[digits..]))
}

/// Parses a line: `start-end perms offset dev inode   path`.
fn parse_line(line: &[u8]) -> Option<Mapped<'_>> {
    let (start, rest) = hex(line)?;
    let (end, mut rest) = hex(rest.strip_prefix(b"-")?)?;
    let mut fields: [&[u8]; 4] = [&[]; 4];
    for field in &mut fields {
        rest = rest.trim_ascii_start();
        let length = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        (*field, rest) = rest.split_at(length);
    }
    let [permissions, offset, device, inode] = fields;
    let may = |at: usize, flag: u8| permissions.get(at) == Some(&flag);
    let (readable, writable, private) = (may(0, b'r'), may(1, b'w'), may(3, b'p'));
    let (offset, _) = hex(offset)?;
    let offset = offset as u64;
    // Hexadecimal: `major:minor`.
    let (major, minor) = hex(device)?;
    let (minor, _) = hex(minor.strip_prefix(b":")?)?;
    let device = (major as u32, minor as u32);
    // Decimal.
    let inode =
        inode.iter().fold(0usize, |n, &b| n.wrapping_mul(10).wrapping_add(usize::from(b.wrapping_sub(b'0'))));
    let path = rest.trim_ascii();
    let path = &path[..path.len().min(PATH_MAX)];
    Some(Mapped { start, end, readable, writable, private, offset, device, inode, path })
}

/// Calls `each` for every mapping of this process in ascending order, until `each` returns false.
///
/// # Errors
/// As `open(2)` and `read(2)` of `/proc/self/maps`: `ENOENT` if `/proc` is not mounted.
pub fn each(each: impl FnMut(Mapped<'_>) -> bool) -> Result<(), Errno> {
    let fd = syscall::open(b"/proc/self/maps\0")?;
    let result = each_of(fd, each);
    syscall::close(fd);
    result
}

/// Calls `each` for the mappings that `fd`, a descriptor of `/proc/self/maps`, lists from its
/// offset on.
///
/// # Errors
/// As `read(2)`.
pub fn each_of(fd: i32, mut each: impl FnMut(Mapped<'_>) -> bool) -> Result<(), Errno> {
    let mut parser = Parser::default();
    let mut piece = [0u8; 4096];
    loop {
        match syscall::read(fd, &mut piece)? {
            0 => return Ok(()),
            n if parser.feed(&piece[..n], &mut each) => {}
            _ => return Ok(()),
        }
    }
}

/// The access that this process has to an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: every range is one of these.
pub enum RangeAccess {
    /// The whole range is mapped for reading and writing.
    Writable,
    /// The whole range is mapped for reading, and a part of it only for reading.
    ReadOnly,
    /// The range is not mapped, or not readable, at this address.
    Hole(usize),
}

/// Returns the access that this process has to the range from `start` to `end`.
///
/// # Errors
/// As [`each`].
pub fn range_access(start: usize, end: usize) -> Result<RangeAccess, Errno> {
    let mut at = start;
    let mut read_only = false;
    each(|mapped| {
        if mapped.end <= at {
            return true;
        }
        if mapped.start > at || !mapped.readable {
            return false;
        }
        read_only |= !mapped.writable;
        at = mapped.end;
        at < end
    })?;
    Ok(match read_only {
        _ if at < end => RangeAccess::Hole(at),
        true => RangeAccess::ReadOnly,
        false => RangeAccess::Writable,
    })
}

/// A search for the lowest multiple of `align`, at or above `from`, at which `length` bytes below
/// `top` are free. The mappings are passed in ascending order.
pub struct HoleSearch {
    at: usize,
    length: usize,
    align: usize,
    top: usize,
}

impl HoleSearch {
    /// Begins a search. All values are in bytes, and `align` is a power of two.
    #[must_use]
    pub fn new(from: usize, length: usize, align: usize, top: usize) -> Self {
        HoleSearch { at: up(from, align), length, align, top }
    }

    /// Passes the next mapping. Returns false once the hole is found below it.
    pub fn pass(&mut self, start: usize, end: usize) -> bool {
        if start >= self.at && start - self.at >= self.length {
            return false;
        }
        if end > self.at {
            self.at = up(end, self.align);
        }
        true
    }

    /// Returns the hole, after all mappings were passed or `pass` has returned false. `None` if
    /// there is none.
    #[must_use]
    pub fn found(&self) -> Option<usize> {
        (self.at <= self.top && self.top - self.at >= self.length).then_some(self.at)
    }
}

fn up(address: usize, align: usize) -> usize {
    address.checked_add(align - 1).map_or(usize::MAX & !(align - 1), |a| a & !(align - 1))
}

/// Returns the lowest free aligned hole of this process at or above `from` and completely below
/// `top`.
///
/// # Errors
/// As [`each`].
pub fn hole(from: usize, length: usize, align: usize, top: usize) -> Result<Option<usize>, Errno> {
    let mut search = HoleSearch::new(from, length, align, top);
    each(|mapped| search.pass(mapped.start, mapped.end))?;
    Ok(search.found())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_in_pieces_of_any_size() {
        let text =
            b"00400000-0040b000 r-xp 00001000 fd:1a 1234     /bin/a b\n7f00-7fff rw-p 0 0:0 0 \nrubbish\n";
        for cut in 1..text.len() {
            let mut parser = Parser::default();
            let mut seen = Vec::new();
            for piece in text.chunks(cut) {
                assert!(parser.feed(piece, &mut |m| {
                    seen.push((m.start, m.end, m.offset, m.device, m.inode, m.path.to_vec()));
                    true
                }));
            }
            assert_eq!(
                seen,
                [
                    (0x40_0000, 0x40_b000, 0x1000, (0xfd, 0x1a), 1234, b"/bin/a b".to_vec()),
                    (0x7f00, 0x7fff, 0, (0, 0), 0, Vec::new())
                ],
                "cut {cut}"
            );
        }
    }

    #[test]
    fn the_search_finds_the_lowest_hole_that_fits() {
        let search = |from, length, mapped: &[(usize, usize)]| {
            let mut search = HoleSearch::new(from, length, 0x1000, 0x10_0000);
            let _ = mapped.iter().all(|&(start, end)| search.pass(start, end));
            search.found()
        };
        assert_eq!(search(0, 0x1000, &[]), Some(0));
        assert_eq!(search(1, 0x1000, &[]), Some(0x1000));
        assert_eq!(search(0, 0x2000, &[(0x1000, 0x2000), (0x3000, 0x4000)]), Some(0x4000));
        assert_eq!(search(0, 0x1000, &[(0x1000, 0x2000)]), Some(0));
        assert_eq!(search(0xf_f000, 0x1000, &[(0x1000, 0x2000)]), Some(0xf_f000));
        assert_eq!(search(0xf_f000, 0x2000, &[]), None);
        assert_eq!(search(0x8000, 0x1000, &[(0x1000, usize::MAX)]), None);
    }

    #[test]
    #[allow(unsafe_code, reason = "the test maps pages of its own")]
    fn the_access_to_a_range_is_determined() {
        let page = 4096;
        // SAFETY: new memory, unmapped at the end.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base =
                libc::mmap(std::ptr::null_mut(), 3 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(page), page, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(base.byte_add(2 * page), page, libc::PROT_NONE), 0);
            base as usize
        };
        assert_eq!(range_access(base, base + page), Ok(RangeAccess::Writable));
        assert_eq!(range_access(base + 5, base + 5 + page), Ok(RangeAccess::ReadOnly));
        assert_eq!(range_access(base + 5, base + 5 + 2 * page), Ok(RangeAccess::Hole(base + 2 * page)));
        // SAFETY: mapped above.
        unsafe { libc::munmap(base as *mut libc::c_void, 3 * page) };
    }

    #[test]
    fn the_list_contains_the_mapping_of_this_function() {
        let here = the_list_contains_the_mapping_of_this_function as *const () as usize;
        let mut found = false;
        each(|m| {
            found |= (m.start..m.end).contains(&here);
            true
        })
        .unwrap();
        assert!(found);
    }
}
