//! A tree that remembers what is read of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::tree::{Tree, TreeEntry};

/// A tree that remembers the entries that were read of another tree.
pub(crate) struct RecordingTree<'a> {
    tree: &'a dyn Tree,
    /// The entries by path, with the text of files that were read.
    read: RefCell<BTreeMap<String, (TreeEntry, Option<String>)>>,
}

impl<'a> RecordingTree<'a> {
    pub(crate) fn new(tree: &'a dyn Tree) -> RecordingTree<'a> {
        RecordingTree { tree, read: RefCell::default() }
    }

    /// Writes the entries that were read below `folder`.
    ///
    /// # Errors
    /// As the operations of files: `AlreadyExists` if a link is already there.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        for (path, (entry, text)) in self.read.borrow().iter() {
            let path = folder.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            match (entry, text) {
                (TreeEntry::Folder, _) => fs::create_dir_all(path)?,
                (TreeEntry::Link(target), _) => symlink(target, path)?,
                (TreeEntry::File, Some(text)) => fs::write(path, text)?,
                (TreeEntry::File, None) => {}
            }
        }
        Ok(())
    }
}

impl Tree for RecordingTree<'_> {
    fn entry(&self, path: &str) -> Option<TreeEntry> {
        let entry = self.tree.entry(path)?;
        self.read.borrow_mut().entry(path.to_owned()).or_insert((entry.clone(), None));
        Some(entry)
    }

    fn read(&self, path: &str) -> Option<String> {
        let text = self.tree.read(path)?;
        self.read.borrow_mut().insert(path.to_owned(), (TreeEntry::File, Some(text.clone())));
        Some(text)
    }

    fn names(&self, path: &str) -> Vec<String> {
        let names = self.tree.names(path);
        for name in &names {
            self.entry(&format!("{path}/{name}"));
        }
        names
    }
}
