//! The proof that an address range shows a part of one memory file.

use hostbuf_os::mapping_query::{ProcessMaps, QueriedMapping};
use hostbuf_register::Span;

use super::error::AdoptError;

/// The identity of a file while it is open or mapped: a file system reuses the numbers of deleted
/// files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MemoryFileId {
    /// The major and the minor number of the device.
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
}

/// A part of a file that an address range shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRange {
    /// The address range.
    pub(super) span: Span,
    pub(super) file: MemoryFileId,
    /// The offset of the first byte in the file.
    pub(super) offset: u64,
    /// True if this process may write through all of the range.
    pub(super) writable: bool,
    /// The addresses of the first mapping: its start and its end.
    pub(super) mapping: (usize, usize),
}

impl FileRange {
    /// Asks the kernel which part of which file `span` shows. Adjacent mappings that show
    /// consecutive parts of one file count as one: `mlock` and `mprotect` split mappings.
    pub(super) fn of(maps: &ProcessMaps, span: Span) -> Result<FileRange, AdoptError> {
        let first = mapping_at(maps, span, span.start())?;
        let mut range = FileRange {
            span,
            file: MemoryFileId { device: first.device, inode: first.inode },
            offset: first.offset + (span.start() - first.start) as u64,
            writable: first.writable,
            mapping: (first.start, first.end),
        };
        let mut at = first.end;
        while at < span.end() {
            let next = mapping_at(maps, span, at)?;
            let file = MemoryFileId { device: next.device, inode: next.inode };
            if file != range.file || next.offset != range.offset + (at - span.start()) as u64 {
                return Err(AdoptError::Discontiguous { span, at });
            }
            range.writable &= next.writable;
            at = next.end;
        }
        Ok(range)
    }

    /// Returns the offset after the last byte in the file.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.span.len() as u64
    }
}

/// Returns the shared mapping of a file that contains `at`.
fn mapping_at(maps: &ProcessMaps, span: Span, at: usize) -> Result<QueriedMapping, AdoptError> {
    let found =
        maps.at_or_after(at).map_err(hostbuf_os::Error::of("looking up a mapping of this process"))?;
    let Some(found) = found.filter(|mapping| mapping.start <= at) else {
        return Err(AdoptError::NotMapped { span, hole: at });
    };
    if found.private || found.inode == 0 {
        return Err(AdoptError::Private { span, at, file: found.inode != 0 });
    }
    Ok(found)
}
