//! The identity and the version of a file.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The identity and the version of a file, from `fstat(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileVersion {
    /// The number of the device that has the file.
    pub device: u64,
    /// The inode.
    pub inode: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The time of the last change of the contents, in nanoseconds since 1970.
    pub modified: i64,
}

impl FileVersion {
    pub(crate) fn of(metadata: &Metadata) -> FileVersion {
        let modified = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        FileVersion { device: metadata.dev(), inode: metadata.ino(), bytes: metadata.len(), modified }
    }

    /// Returns whether both have the same length and the same time of the last change. The number
    /// of the device of a network file system, and the inode of a copy, differ between hosts.
    #[must_use]
    pub fn is_same_version(&self, other: &FileVersion) -> bool {
        (self.bytes, self.modified) == (other.bytes, other.modified)
    }
}

impl fmt::Display for FileVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileVersion { device, inode, bytes, modified } = self;
        let (seconds, rest) = (modified.div_euclid(1_000_000_000), modified.rem_euclid(1_000_000_000));
        write!(f, "{bytes} bytes, inode {inode} of device {device:#x}, changed at {seconds}.{rest:09}")
    }
}
