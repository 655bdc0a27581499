//! The mark by which a broker knows the segments of its predecessors.

use std::fmt;
use std::fs;

use xxhash_rust::xxh3::Xxh3;

use crate::segment::SegmentFile;

/// The mark of all brokers with one socket name in one network namespace. The names of their data
/// files contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrokerTag(u64);

impl BrokerTag {
    /// Returns the mark of a broker of this process with this socket name.
    pub(super) fn of(socket: &str) -> BrokerTag {
        let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let mut hash = Xxh3::new();
        hash.update(network.as_os_str().as_encoded_bytes());
        hash.update(socket.as_bytes());
        BrokerTag(hash.digest())
    }

    /// Returns the name of a data file, as `/proc/PID/maps` shows it.
    pub(super) fn data_file(self) -> String {
        format!("{}-{self}", SegmentFile::Data.name())
    }
}

impl fmt::Display for BrokerTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
