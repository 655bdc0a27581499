//! The outer layout of files of Arrow IPC. The feature `arrow` decodes the record batches.
//!
//! ```text
//! | ARROW1 | 2 bytes | messages | footer | length of the footer (4 bytes) | ARROW1 |
//! ```

use super::file_format::FileFormat;
use super::file_header::{FileHeader, whole_file};
use super::header_source::HeaderSource;
use crate::error::FileProblem;

/// The bytes at the beginning and at the end of a file.
pub(super) const MAGIC: &[u8] = b"ARROW1";
/// The number of bytes before the messages.
const HEAD: u64 = 8;
/// The number of bytes after the footer.
const TAIL: u64 = 10;

/// Checks the layout, and returns one tensor of all bytes.
///
/// # Errors
/// As [`HeaderSource::read`]; [`FileProblem::Header`] if the file does not begin or end as one of
/// Arrow IPC, or its footer is larger than the file; [`FileProblem::Unsupported`] for Feather 1.
pub(super) fn read(source: &HeaderSource<'_>, name: String) -> Result<FileHeader, FileProblem> {
    let start = source.read(0, MAGIC.len() as u64)?;
    if start.starts_with(b"FEA1") {
        let remedy = "Write it as Feather 2 (pyarrow.feather.write_feather)";
        return Err(FileProblem::Unsupported { what: "the format Feather 1".into(), remedy });
    }
    let bytes = source.bytes();
    let tail = source.read(bytes.saturating_sub(TAIL), TAIL)?;
    let (length, end) = tail.split_at(4);
    for (found, place) in [(&start[..], "begins"), (end, "ends")] {
        if found != MAGIC {
            let found = String::from_utf8_lossy(found).into_owned();
            let stated = format!("a file of Arrow IPC {place} with \"ARROW1\"");
            return Err(FileProblem::header(stated, format!("this one {place} with {found:?}")));
        }
    }
    let length = i32::from_le_bytes(length.try_into().expect("4 bytes were split off"));
    let room = bytes - TAIL;
    if length <= 0 || length as u64 + HEAD > room {
        let found = format!("the file has {bytes} bytes");
        return Err(FileProblem::header(format!("its footer has {length} bytes"), found));
    }
    let tensors = vec![whole_file(name, bytes)];
    Ok(FileHeader { format: FileFormat::ArrowIpc, data_start: HEAD, tensors, metadata: Vec::new() })
}
