//! The places of files in one region of a buffer.
//!
//! Each file lies in the region whole, with its header, from a multiple of 4096 on. So its bytes
//! have the same place in a page as in the file, and reads bypassing the page cache go straight
//! into the buffer. A tensor is aligned in memory as it is in its file: numpy aligns data to 64
//! bytes, safetensors to 8.
//!
//! A file of safetensors whose header has another length would leave its elements unaligned. Such
//! a file is shifted, so that its data begin at a multiple of 64, and it is read through the page
//! cache.

use super::source_file::SourceFile;

/// The alignment of files in the region in bytes.
const FILE_ALIGNMENT: u64 = 4096;
/// The alignment of the data of a shifted file in bytes.
const DATA_ALIGNMENT: u64 = 64;
/// The alignment that the largest numbers need, and that the writers of safetensors give.
const ELEMENT_ALIGNMENT: u64 = 8;

/// Gives each file its place, and returns the number of bytes of the region. `None` if no memory
/// is that large.
pub(super) fn place(files: &mut [SourceFile]) -> Option<u64> {
    let mut end = 0u64;
    for file in files {
        let start = end.checked_next_multiple_of(FILE_ALIGNMENT)?;
        file.region_offset = start + shift(file.data_start);
        end = file.region_offset.checked_add(file.bytes()).filter(|&end| end <= i64::MAX as u64)?;
    }
    Some(end)
}

/// Returns the distance of a file from a multiple of 4096.
fn shift(data_start: u64) -> u64 {
    if data_start.is_multiple_of(ELEMENT_ALIGNMENT) {
        return 0;
    }
    data_start.next_multiple_of(DATA_ALIGNMENT) - data_start
}

impl SourceFile {
    /// Returns whether bytes have the same place in a page of the buffer as in the file.
    #[must_use]
    pub fn is_page_aligned(&self) -> bool {
        self.region_offset.is_multiple_of(FILE_ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FileFormat;
    use crate::table::FileVersion;

    fn file(data_start: u64, bytes: u64) -> SourceFile {
        SourceFile {
            path: "f".into(),
            format: FileFormat::Safetensors,
            version: FileVersion { bytes, ..FileVersion::default() },
            data_start,
            region_offset: u64::MAX,
            metadata: Vec::new(),
        }
    }

    #[test]
    fn files_lie_on_pages_and_do_not_overlap() {
        let mut files = [file(80, 5000), file(64, 0), file(128, 1), file(61, 100), file(8, 4096)];
        let bytes = place(&mut files).expect("memory can be that large");
        assert_eq!(files.each_ref().map(|file| file.region_offset), [0, 8192, 8192, 12288 + 3, 16384]);
        assert_eq!(bytes, 16384 + 4096);
        // The data of the shifted file are aligned.
        assert!((files[3].region_offset + 61).is_multiple_of(64) && !files[3].is_page_aligned());
    }

    #[test]
    fn files_that_no_memory_holds_have_no_place() {
        assert_eq!(place(&mut [file(8, i64::MAX as u64), file(8, 1)]), None);
        assert_eq!(place(&mut [file(8, u64::MAX)]), None);
    }
}
