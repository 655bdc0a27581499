//! Temporary folders.

use std::fs;
use std::path::PathBuf;

use crate::root;

/// A folder for one test, which is removed with its contents on drop.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes an empty folder below target/tmp.
    ///
    /// # Panics
    /// If target/ is not writable.
    #[must_use]
    pub fn new(name: &str) -> Scratch {
        let dir = root().join(format!("target/tmp/{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("target/ is writable");
        Scratch(dir)
    }

    /// Returns the path of an entry.
    ///
    /// # Panics
    /// If the repository's path is not UTF-8.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Returns whether an entry exists.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
