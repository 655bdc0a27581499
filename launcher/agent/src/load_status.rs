//! The state of the files that a host loads, for `hostbuf stat`: a memory file of the agent, which
//! stays until the agent ends.
//!
//! ```text
//! | bytes loaded | 1 if complete | length of the text | JSON text |       numbers of 8 bytes
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use hostbuf::segment::{LOADS_NAME, file_name};
use hostbuf_memory::memfd::{self, Backing};
use serde_json::{Value, json};

/// The length of the numbers in front of the text.
const HEAD: u64 = 24;
/// The longest text that is read.
const MAX_TEXT: u64 = 64 << 20;

/// The state of the files that this agent loads. It has no contents in a job without such files.
#[derive(Debug, Default)]
pub(crate) struct LoadStatus(OnceLock<OwnedFd>);

impl LoadStatus {
    /// Begins a load of files, none of which is loaded yet. The state is for display, so an error
    /// is only logged.
    pub(crate) fn begin(&self, job: u128, files: &[ReportedFile]) {
        let row = |file: &ReportedFile| json!([file.path, file.bytes, file.page]);
        let text = Value::Array(files.iter().map(row).collect()).to_string();
        let mut contents = [0, 0, text.len() as u64].map(u64::to_le_bytes).concat();
        contents.extend_from_slice(text.as_bytes());
        let name = file_name(job, LOADS_NAME);
        let made = memfd::create(&name, contents.len() as u64, Backing::Shmem);
        let made = made.and_then(|file| memfd::write(file.as_fd(), &contents).map(|()| file));
        match made {
            Ok(file) => drop(self.0.set(file)),
            Err(error) => tracing::warn!(%error, "`hostbuf stat` does not show the files of this job"),
        }
    }

    /// Sets the number of bytes that are loaded.
    pub(crate) fn set_loaded(&self, bytes: u64) {
        self.write(&[bytes]);
    }

    /// Declares all `bytes` bytes as loaded.
    pub(crate) fn complete(&self, bytes: u64) {
        self.write(&[bytes, 1]);
    }

    /// Writes the first numbers. They are for display, so an error has no consequence.
    fn write(&self, numbers: &[u64]) {
        if let Some(file) = self.0.get() {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let _ = memfd::write(file.as_fd(), &bytes);
        }
    }
}

/// A file of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportedFile {
    /// The path, with replacements for bytes that are not UTF-8.
    pub path: String,
    /// The number of bytes.
    pub bytes: u64,
    /// The size of the pages of its memory in bytes.
    pub page: u64,
}

impl ReportedFile {
    /// Describes a file of this length with pages of this size.
    pub(crate) fn new(path: &Path, bytes: u64, page: u64) -> ReportedFile {
        ReportedFile { path: path.to_string_lossy().into_owned(), bytes, page }
    }
}

/// The state of the files of a job on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The number of bytes that are loaded.
    pub loaded: u64,
    /// True if all files are loaded.
    pub complete: bool,
    /// The files.
    pub files: Vec<ReportedFile>,
}

impl LoadReport {
    /// Reads the memory file of an agent.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::InvalidData`] for other contents.
    pub fn read(file: &File) -> io::Result<LoadReport> {
        let mut head = [0; HEAD as usize];
        file.read_exact_at(&mut head, 0)?;
        let mut numbers = head.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or_default();
        let (loaded, complete, length) = (next(), next() == 1, next());
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        if length > MAX_TEXT {
            return Err(invalid());
        }
        let mut text = vec![0; length as usize];
        file.read_exact_at(&mut text, HEAD)?;
        let rows: Vec<(String, u64, u64)> = match serde_json::from_slice(&text)? {
            Value::Array(rows) => rows.iter().map(row).collect::<Option<_>>().ok_or_else(invalid)?,
            _ => return Err(invalid()),
        };
        let files = rows.into_iter().map(|(path, bytes, page)| ReportedFile { path, bytes, page }).collect();
        Ok(LoadReport { loaded, complete, files })
    }

    /// Returns the number of bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

fn row(row: &Value) -> Option<(String, u64, u64)> {
    Some((row.get(0)?.as_str()?.to_owned(), row.get(1)?.as_u64()?, row.get(2)?.as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_while_it_changes() {
        let status = LoadStatus::default();
        status.set_loaded(3);
        let files =
            [ReportedFile::new(Path::new("/a b\n"), 7, 4096), ReportedFile::new(Path::new("c"), 0, 1)];
        status.begin(1, &files);
        let file = File::from(status.0.get().expect("it has begun").try_clone().expect("a descriptor"));
        let expected = LoadReport { loaded: 0, complete: false, files: files.to_vec() };
        assert_eq!(LoadReport::read(&file).expect("it is intact"), expected);
        status.set_loaded(3);
        assert_eq!(
            LoadReport::read(&file).expect("it is intact"),
            LoadReport { loaded: 3, ..expected.clone() }
        );
        status.complete(7);
        let found = LoadReport::read(&file).expect("it is intact");
        assert_eq!((found.loaded, found.complete, found.bytes()), (7, true, 7));
        for (at, bytes) in [(16, &[0xff; 8][..]), (16, &[9, 0, 0, 0, 0, 0, 0, 0]), (24, b"{}")] {
            file.write_all_at(bytes, at).expect("our file");
            assert!(LoadReport::read(&file).is_err(), "{at}");
        }
    }
}
