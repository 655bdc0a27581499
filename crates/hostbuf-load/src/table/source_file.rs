//! A file of a table of tensors.

use std::path::PathBuf;

use super::file_version::FileVersion;
use crate::format::FileFormat;

/// A file of a table of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceFile {
    /// The absolute path.
    pub path: PathBuf,
    /// The format.
    pub format: FileFormat,
    /// The file when its header was read.
    pub version: FileVersion,
    /// The offset of the first byte of data, after the header.
    pub data_start: u64,
    /// The offset of the first byte of the file in the region of a buffer.
    pub region_offset: u64,
    /// The free texts of the header, sorted by key.
    pub metadata: Vec<(String, String)>,
}

impl SourceFile {
    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.version.bytes
    }

    /// Returns the offset of the end of the file in the region of a buffer.
    #[must_use]
    pub fn region_end(&self) -> u64 {
        self.region_offset + self.version.bytes
    }
}
