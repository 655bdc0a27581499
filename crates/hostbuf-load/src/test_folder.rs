//! A folder for one test.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder for one test, which is removed with its contents on drop.
#[derive(Debug)]
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    pub(crate) fn new(name: &str) -> TestFolder {
        // Tests run in threads of their own.
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(format!("hostbuf-load-{name}-{process}-{thread:?}"));
        fs::create_dir(&path).expect("the temporary folder is writable");
        TestFolder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and returns its path.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("the folder is writable");
        path
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.0);
        if let (Err(error), false) = (removed, std::thread::panicking()) {
            panic!("removing {}: {error}", self.0.display());
        }
    }
}
