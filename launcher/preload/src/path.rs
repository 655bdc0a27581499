//! Paths in static memory.

use hostbuf_raw::syscall as raw;

use crate::static_buffer::{BufferGuard, StaticBuffer};

/// The largest length of a path in bytes, with its NUL.
const PATH_MAX: usize = 4096;
/// The memory of the paths: at most three are in use at once.
static PATHS: [StaticBuffer<PATH_MAX>; 3] = [const { StaticBuffer::new() }; 3];

/// A path.
pub(crate) struct Path {
    /// The path and a NUL, if it has one.
    bytes: BufferGuard<PATH_MAX>,
    /// The length without the NUL.
    length: usize,
}

impl Path {
    /// Reads the link at `link`, which ends with a NUL. The path is empty if there is none.
    pub(crate) fn of_link(link: &[u8]) -> Path {
        let mut bytes = StaticBuffer::one_of(&PATHS);
        let length = raw::read_link(link, &mut bytes[..PATH_MAX - 1]).unwrap_or(0);
        bytes[length] = 0;
        Path { bytes, length }
    }

    /// Joins the parts of a path. Returns `None` if it is too long.
    pub(crate) fn join(parts: &[&[u8]]) -> Option<Path> {
        let mut path = Path { bytes: StaticBuffer::one_of(&PATHS), length: 0 };
        for part in parts {
            let end = path.length + part.len();
            path.bytes[..PATH_MAX - 1].get_mut(path.length..end)?.copy_from_slice(part);
            path.length = end;
        }
        let end = path.length;
        path.bytes[end] = 0;
        Some(path)
    }

    /// Returns the path.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Opens the file at the path for reading.
    ///
    /// # Errors
    /// As `open(2)`.
    pub(crate) fn open(&self) -> Result<i32, raw::Errno> {
        raw::open(&self.bytes[..=self.length])
    }

    /// Returns whether the file at the path can be opened.
    pub(crate) fn exists(&self) -> bool {
        self.open().map(raw::close).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_unless_they_are_too_long() {
        let path = Path::join(&[b"/proc", b"/self"]).expect("a short path");
        assert_eq!(path.bytes(), b"/proc/self");
        assert!(path.exists());
        assert!(Path::join(&[&[b'x'; PATH_MAX - 1]]).is_some());
        assert!(Path::join(&[&[b'x'; PATH_MAX - 1], b"x"]).is_none());
    }
}
