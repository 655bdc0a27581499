//! Trees of files as the kernel shows them, and the reader of one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::str::FromStr;

/// The number of bytes that are read of a file. Files of `/sys` have at most a page, and
/// `/proc/zoneinfo` has about 150 bytes for each CPU and zone.
pub(crate) const FILE_LIMIT: usize = 1 << 20;

/// The number of entries that are read of a folder.
pub(crate) const FOLDER_LIMIT: usize = 16 << 10;

/// The number of symbolic links that are followed for one path, as in the kernel.
const LINK_LIMIT: usize = 40;

/// The number of parts of a path. Paths of devices have about 20.
const PART_LIMIT: usize = 64;

/// The number of bytes of a path, as in the kernel.
const PATH_LIMIT: usize = 4096;

/// A node of a tree. Links are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeEntry {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link with its target.
    Link(String),
}

/// A tree of files. Its paths are relative to the root, without `.` and `..` and without links.
pub(crate) trait Tree {
    /// Returns the entry at `path`, or `None` if there is none that can be read.
    fn entry(&self, path: &str) -> Option<TreeEntry>;

    /// Returns the first [`FILE_LIMIT`] bytes of the file at `path` as text.
    fn read(&self, path: &str) -> Option<String>;

    /// Returns the first [`FOLDER_LIMIT`] names in the folder at `path`.
    fn names(&self, path: &str) -> Vec<String>;
}

/// A reader of a tree, which follows symbolic links and never leaves the tree.
pub(crate) struct TreeReader<'a> {
    tree: &'a dyn Tree,
    /// The paths without links of paths that were looked up before.
    resolved: RefCell<HashMap<String, Option<String>>>,
}

impl<'a> TreeReader<'a> {
    pub(crate) fn new(tree: &'a dyn Tree) -> TreeReader<'a> {
        TreeReader { tree, resolved: RefCell::default() }
    }

    /// Returns the path that `path` leads to, without links, or `None` if nothing is there.
    pub(crate) fn resolve(&self, path: &str) -> Option<String> {
        if let Some(known) = self.resolved.borrow().get(path) {
            return known.clone();
        }
        let found = self.follow(path);
        self.resolved.borrow_mut().insert(path.to_owned(), found.clone());
        found
    }

    fn follow(&self, path: &str) -> Option<String> {
        let reversed = |path: &str| path.split('/').rev().map(str::to_owned).collect::<Vec<_>>();
        let (mut at, mut links) = (String::new(), 0);
        let mut parts = reversed(path);
        // Most paths begin with a folder that was looked up before.
        if let Some((folder, name)) = path.rsplit_once('/').filter(|(folder, _)| folder.contains('/')) {
            (at, parts) = (self.resolve(folder)?, reversed(name));
        }
        while let Some(part) = parts.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let length = at.len();
            if !at.is_empty() {
                at.push('/');
            }
            at.push_str(&part);
            if let TreeEntry::Link(target) = self.tree.entry(&at)? {
                // A target that begins with / begins at the root of the tree.
                at.truncate(if target.starts_with('/') { 0 } else { length });
                parts.extend(reversed(&target));
                links += 1;
            }
            let depth = at.matches('/').count();
            if links > LINK_LIMIT || depth + parts.len() > PART_LIMIT || at.len() > PATH_LIMIT {
                return None;
            }
        }
        Some(at)
    }

    /// Returns the text of a file without white space at its ends. Old kernels write a zero byte
    /// behind lists of CPUs.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let text = self.tree.read(&self.resolve(path)?)?;
        Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
    }

    /// Returns the value of a file that contains one.
    pub(crate) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the sorted names in a folder. Numbers in names are sorted by their values.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let mut names = self.resolve(path).map(|path| self.tree.names(&path)).unwrap_or_default();
        names.retain(|name| !name.is_empty() && !name.contains('/') && name != "." && name != "..");
        names.sort_by_cached_key(|name| natural_key(name));
        names.dedup();
        names.truncate(FOLDER_LIMIT);
        names
    }

    /// Returns true if there is something at `path`.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_some()
    }
}

/// Returns a key that sorts `eth2` before `eth10`.
pub(crate) fn natural_key(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        key.push((text.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_tree::MemoryTree;

    #[test]
    fn links_lead_through_the_tree_and_never_out_of_it() {
        let tree = MemoryTree::new()
            .file("sys/devices/a/value", "7\n")
            .link("sys/class/x/a", "../../devices/a")
            .link("sys/class/x/absolute", "/sys/devices/a")
            .link("sys/class/x/above", "../../../../../../sys/devices/a/value")
            .link("sys/class/x/dangling", "nowhere");
        let reader = TreeReader::new(&tree);
        assert_eq!(reader.resolve("sys/class/x/a").as_deref(), Some("sys/devices/a"));
        assert_eq!(reader.value("sys/class/x/a/value"), Some(7));
        assert_eq!(reader.value("sys/class/x/absolute/value"), Some(7));
        assert_eq!(reader.value("sys/class/x/above"), Some(7));
        assert_eq!(reader.text("sys/class/x/dangling"), None);
        assert_eq!(reader.text("sys/devices/a"), None);
        assert_eq!(reader.names("sys/devices/a/value"), Vec::<String>::new());
    }

    #[test]
    fn loops_of_links_end() {
        let tree = MemoryTree::new()
            .link("sys/a", "b")
            .link("sys/b", "a")
            .link("sys/deep", "deep/deep")
            .link("sys/wide", &"wide/".repeat(200));
        let reader = TreeReader::new(&tree);
        for name in ["a", "deep", "wide"] {
            assert_eq!(reader.resolve(&format!("sys/{name}")), None, "{name}");
            assert_eq!(reader.resolve(&format!("sys/{name}/x/y")), None, "{name}");
        }
    }

    #[test]
    fn names_are_sorted_by_their_numbers() {
        let tree = MemoryTree::new().file("d/eth10", "").file("d/eth2", "").file("d/ib0", "").file("d/a", "");
        assert_eq!(TreeReader::new(&tree).names("d"), ["a", "eth2", "eth10", "ib0"]);
    }
}
