//! A tree that remembers what is read of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::tree::{Tree, TreeEntry};

/// A tree that remembers the entries that were read of another tree. Each file is read once, so
/// what is written is what was returned, also if the host has changed since.
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
        if let Some((_, Some(text))) = self.read.borrow().get(path) {
            return Some(text.clone());
        }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A tree with one file, which has another text each time it is read.
    struct ChangingTree(Cell<u32>);

    impl Tree for ChangingTree {
        fn entry(&self, path: &str) -> Option<TreeEntry> {
            (path == "meminfo").then_some(TreeEntry::File)
        }

        fn read(&self, path: &str) -> Option<String> {
            self.0.set(self.0.get() + 1);
            self.entry(path).map(|_| format!("MemFree: {} kB", self.0.get()))
        }

        fn names(&self, _: &str) -> Vec<String> {
            vec!["meminfo".to_owned()]
        }
    }

    #[test]
    fn a_file_that_changes_is_read_once() {
        let tree = ChangingTree(Cell::new(0));
        let recording = RecordingTree::new(&tree);
        assert_eq!(recording.entry("meminfo"), Some(TreeEntry::File));
        let first = recording.read("meminfo");
        assert_eq!(first.as_deref(), Some("MemFree: 1 kB"));
        assert_eq!(recording.read("meminfo"), first);
        assert_eq!(recording.read("none"), None);
    }
}
