//! A tree in memory, for tests and fuzzing.

use std::collections::BTreeMap;

use crate::tree::{FILE_LIMIT, FOLDER_LIMIT, Tree, TreeEntry};

/// A tree whose files and links are in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryTree {
    entries: BTreeMap<String, (TreeEntry, String)>,
}

impl MemoryTree {
    pub(crate) fn new() -> MemoryTree {
        MemoryTree::default()
    }

    /// Adds a file and the folders above it.
    pub(crate) fn file(self, path: &str, text: &str) -> MemoryTree {
        self.entry_at(path, TreeEntry::File, text)
    }

    /// Adds a symbolic link and the folders above it.
    pub(crate) fn link(self, path: &str, target: &str) -> MemoryTree {
        self.entry_at(path, TreeEntry::Link(target.into()), "")
    }

    /// Adds a folder and the folders above it.
    #[cfg(test)]
    pub(crate) fn folder(self, path: &str) -> MemoryTree {
        self.entry_at(path, TreeEntry::Folder, "")
    }

    fn entry_at(mut self, path: &str, entry: TreeEntry, text: &str) -> MemoryTree {
        for (end, _) in path.match_indices('/') {
            self.entries.entry(path[..end].to_owned()).or_insert((TreeEntry::Folder, String::new()));
        }
        self.entries.insert(path.to_owned(), (entry, text.to_owned()));
        self
    }
}

impl Tree for MemoryTree {
    fn entry(&self, path: &str) -> Option<TreeEntry> {
        self.entries.get(path).map(|(entry, _)| entry.clone())
    }

    fn read(&self, path: &str) -> Option<String> {
        let (entry, text) = self.entries.get(path)?;
        let end = (0..=FILE_LIMIT.min(text.len())).rev().find(|end| text.is_char_boundary(*end))?;
        (*entry == TreeEntry::File).then(|| text[..end].to_owned())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let folder = format!("{path}/");
        if !self.entries.get(path).is_some_and(|(entry, _)| *entry == TreeEntry::Folder) {
            return Vec::new();
        }
        let below = self.entries.range(folder.clone()..).map_while(|(path, _)| path.strip_prefix(&folder));
        below.filter(|name| !name.contains('/')).take(FOLDER_LIMIT).map(str::to_owned).collect()
    }
}
