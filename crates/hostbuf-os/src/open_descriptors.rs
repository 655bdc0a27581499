//! The open descriptors of this process, and their limit.

use std::{fmt, fs};

use nix::sys::resource::{Resource, getrlimit};

/// The number of open descriptors of this process, and the limit on it, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a number and its limit.
pub struct OpenDescriptors {
    /// The number of open descriptors.
    pub open: u64,
    /// The limit on their numbers (RLIMIT_NOFILE).
    pub limit: u64,
}

impl OpenDescriptors {
    /// Counts the open descriptors of this process.
    #[must_use]
    pub fn count() -> OpenDescriptors {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let open = match fs::read_dir("/proc/self/fd") {
            // One of them is that of the folder.
            Ok(entries) => (entries.count() as u64).saturating_sub(1),
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => limit,
            Err(_) => 0,
        };
        OpenDescriptors { open, limit }
    }

    /// Returns whether this process can open `more` files.
    #[must_use]
    pub fn has_room(&self, more: u64) -> bool {
        self.open.saturating_add(more) <= self.limit
    }

    /// Describes the limit, and the need for `more` files.
    #[must_use]
    pub fn needs(&self, more: u64) -> String {
        format!("{self} and needs up to {more} more")
    }
}

impl fmt::Display for OpenDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenDescriptors { open, limit } = *self;
        write!(f, "this process may open {limit} files (RLIMIT_NOFILE), has {open} open")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_and_the_need_are_named() {
        let before = OpenDescriptors { open: 9, limit: 100 };
        assert!(before.has_room(91) && !before.has_room(92));
        let says = "this process may open 100 files (RLIMIT_NOFILE), has 9 open and needs up to 256 more";
        assert_eq!(before.needs(256), says);
        assert!(OpenDescriptors::count().open > 2 && OpenDescriptors::count().has_room(1));
    }
}
