//! The tree of this host, or a recorded tree in a folder.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::tree::{FILE_LIMIT, FOLDER_LIMIT, Tree, TreeEntry};

/// A tree in a folder: `/` for this host.
#[derive(Debug)]
pub(crate) struct DiskTree {
    root: PathBuf,
}

impl DiskTree {
    pub(crate) fn new(root: &Path) -> DiskTree {
        DiskTree { root: root.to_owned() }
    }
}

impl Tree for DiskTree {
    fn entry(&self, path: &str) -> Option<TreeEntry> {
        let path = self.root.join(path);
        let kind = fs::symlink_metadata(&path).ok()?.file_type();
        match () {
            () if kind.is_symlink() => {
                fs::read_link(&path).ok()?.to_str().map(|to| TreeEntry::Link(to.into()))
            }
            () if kind.is_dir() => Some(TreeEntry::Folder),
            () if kind.is_file() => Some(TreeEntry::File),
            // Opening a FIFO would wait for its other end.
            () => None,
        }
    }

    fn read(&self, path: &str) -> Option<String> {
        if self.entry(path)? != TreeEntry::File {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(self.root.join(path)).ok()?.take(FILE_LIMIT as u64).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let names = entries.take(FOLDER_LIMIT).flatten().map(|entry| entry.file_name().into_string());
        names.flatten().collect()
    }
}
