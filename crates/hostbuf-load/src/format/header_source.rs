//! A file whose header is read.

use std::cell::Cell;
use std::io;

use hostbuf_staging::ReadAt;

use crate::error::FileProblem;

/// The longest header that is read: the limit of safetensors.
const MAX_HEADER: u64 = 100_000_000;

/// A file whose header is read.
pub(crate) struct HeaderSource<'f> {
    file: &'f dyn ReadAt,
    bytes: u64,
    bytes_read: Cell<u64>,
}

impl<'f> HeaderSource<'f> {
    pub(crate) fn new(file: &'f dyn ReadAt, bytes: u64) -> HeaderSource<'f> {
        HeaderSource { file, bytes, bytes_read: Cell::new(0) }
    }

    /// Returns the number of bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of bytes that were read.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.get()
    }

    /// Reads `length` bytes at `offset`. No memory is allocated for bytes that the file does not
    /// have.
    ///
    /// # Errors
    /// The kernel's; [`FileProblem::Header`] if the bytes are not within the file, or are more than
    /// any header has.
    pub(crate) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, FileProblem> {
        if offset.checked_add(length).is_none_or(|end| end > self.bytes) {
            let stated = format!("its header has {length} bytes at offset {offset}");
            return Err(FileProblem::header(stated, format!("the file has {} bytes", self.bytes)));
        }
        if length > MAX_HEADER {
            let stated = format!("its header has {length} bytes");
            return Err(FileProblem::header(stated, format!("headers have at most {MAX_HEADER} bytes")));
        }
        let mut into = vec![0; length as usize];
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => {
                    let found = format!("the file has ended at byte {}", offset + done as u64);
                    return Err(FileProblem::header(format!("the file has {} bytes", self.bytes), found));
                }
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FileProblem::io("reading the header of")(error)),
            }
        }
        self.bytes_read.set(self.bytes_read.get() + length);
        Ok(into)
    }
}
