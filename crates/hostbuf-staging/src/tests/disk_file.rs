//! A file on a disk.

use std::fs;
use std::path::PathBuf;

use crate::{Backend, File, FileOptions};

/// A file in the folder of the tests' programs, which is on a disk. Dropping it removes it.
pub(crate) struct DiskFile(pub(crate) PathBuf);

impl DiskFile {
    pub(crate) fn new(name: &str, content: &[u8]) -> DiskFile {
        let program = std::env::current_exe().expect("this test");
        let path = program.with_file_name(format!("staging-{name}-{}", std::process::id()));
        fs::write(&path, content).expect("the folder is writable");
        DiskFile(path)
    }

    /// Opens the file bypassing the page cache, unless its file system refuses that.
    pub(crate) fn direct(&self) -> Option<File> {
        self.open(Backend::Direct)
    }

    /// Opens the file for reading and writing, unless the machine does not support the backend.
    pub(crate) fn open(&self, backend: Backend) -> Option<File> {
        match FileOptions::new().backend(backend).write(true).open(&self.0) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                eprintln!("skipped: reads and writes by {backend}: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
