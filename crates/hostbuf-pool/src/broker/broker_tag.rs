//! The mark by which a broker knows the segments of its predecessors.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::options::BrokerOptions;
use crate::segment::SegmentFile;

/// The beginning of the name of the file that each client of a broker has.
const CLIENT_FILE: &str = "hostbuf-pool-client";

/// The mark of a broker, which the names of its data files contain. A later broker is its successor
/// if it has the same socket name in the same network namespace, or the same socket path, which
/// brokers in several network namespaces may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrokerTag {
    name: u64,
    /// 0 without a path.
    path: u64,
}

impl BrokerTag {
    /// Returns the mark of a broker of this process with these options.
    pub(super) fn of(options: &BrokerOptions) -> BrokerTag {
        let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let mut hash = Xxh3::new();
        hash.update(network.as_os_str().as_encoded_bytes());
        hash.update(options.name.as_bytes());
        let path = options.path.as_deref().and_then(path_mark);
        BrokerTag { name: hash.digest(), path: path.unwrap_or(0) }
    }

    /// Returns the name of a data file, as `/proc/PID/maps` shows it.
    pub(super) fn data_file(self) -> String {
        format!("{}-{self}", SegmentFile::Data.name())
    }

    /// Returns the name of the file that each client of this broker has.
    pub(super) fn client_file(self) -> String {
        format!("{CLIENT_FILE}-{self}")
    }

    /// Returns whether a file is a data file of this broker, or of one of its predecessors. `link`
    /// is its link in `/proc/PID/fd`.
    pub(super) fn marks(self, link: &str) -> bool {
        self.is_in(SegmentFile::Data.name(), link)
    }

    /// Returns whether a file is that of a client of this broker, or of one of its predecessors.
    pub(super) fn marks_client(self, link: &str) -> bool {
        self.is_in(CLIENT_FILE, link)
    }

    /// Returns whether `link` is that of a file whose name is `beginning` with this mark.
    fn is_in(self, beginning: &str, link: &str) -> bool {
        let marks = || {
            let rest = link.strip_prefix("/memfd:")?.strip_prefix(beginning)?;
            let (name, path) = rest.strip_prefix('-')?.split_once('-')?;
            let path = path.get(..16)?;
            let number = |digits| u64::from_str_radix(digits, 16).ok();
            let (name, path) = (number(name)?, number(path)?);
            Some(name == self.name || (path != 0 && path == self.path))
        };
        marks().unwrap_or(false)
    }
}

/// Returns the mark of a socket path: containers may mount its folder at different places.
fn path_mark(path: &Path) -> Option<u64> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = fs::metadata(folder).ok()?;
    let mut hash = Xxh3::new();
    hash.update(&folder.dev().to_ne_bytes());
    hash.update(&folder.ino().to_ne_bytes());
    hash.update(&xxh3_64(path.file_name()?.as_bytes()).to_ne_bytes());
    Some(hash.digest())
}

impl fmt::Display for BrokerTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.name, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_the_name_or_the_path() {
        let of = |name: &str, path: Option<&str>| {
            let options = BrokerOptions::new().name(name);
            BrokerTag::of(&path.map_or(options.clone(), |path| options.path(path)))
        };
        let link = |tag: BrokerTag| format!("/memfd:{} (deleted)", tag.data_file());
        let (plain, both) = (of("one", None), of("one", Some("/tmp/pool.socket")));
        let moved = of("two", Some("/tmp/../tmp/pool.socket"));
        assert!(plain.marks(&link(both)) && both.marks(&link(plain)) && both.marks(&link(moved)));
        assert!(!plain.marks(&link(moved)) && !moved.marks(&link(plain)));
        let client = format!("/memfd:{} (deleted)", both.client_file());
        assert!(plain.marks_client(&client) && !plain.marks(&client) && !plain.marks_client(&link(plain)));
        assert!(!of("two", None).marks(&link(of("three", None))), "neither has a path");
        for other in ["/memfd:hostbuf-pool-data (deleted)", "/memfd:hostbuf-pool-data-1-2", "/tmp/x", ""] {
            assert!(!plain.marks(other), "{other}");
        }
    }
}
