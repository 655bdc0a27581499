//! A segment of an earlier broker in the descriptor store of the service manager.

use std::os::fd::{AsFd, OwnedFd};

use hostbuf_memory::memfd;

use crate::pool_id::PoolId;
use crate::wire::SegmentKey;

/// The beginning of the names of data files in the descriptor store.
const PREFIX: &str = "hostbuf-pool-data-";

/// A segment of an earlier broker that no client has handed back yet.
#[derive(Debug)]
pub(super) struct StoredSegment {
    pub(super) key: SegmentKey,
    /// The number of bytes of all files of the segment.
    pub(super) bytes: u64,
    /// The data file.
    pub(super) data: OwnedFd,
}

/// Returns the name of a segment in the descriptor store: `hostbuf-pool-data-POOL-NUMBER-BYTES`.
pub(super) fn store_name(key: SegmentKey, bytes: u64) -> String {
    format!("{PREFIX}{}-{}-{bytes}", key.pool, key.number)
}

/// Returns whether a descriptor with this name is a data file.
pub(super) fn is_store_name(name: &str) -> bool {
    name.starts_with(PREFIX)
}

impl StoredSegment {
    /// Takes a descriptor from the store. Returns `None` if it is no data file of a pool.
    pub(super) fn take(name: &str, data: OwnedFd) -> Option<StoredSegment> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let (pool, number, bytes) = (parts.next()?, parts.next()?, parts.next()?);
        let pool = PoolId::from_bits(u128::from_str_radix(pool, 16).ok()?);
        let key = SegmentKey { pool, number: number.parse().ok()? };
        // The file is at least as large as it is.
        let bytes = bytes.parse::<u64>().ok()?.max(memfd::length(data.as_fd()).ok()?);
        parts.next().is_none().then_some(StoredSegment { key, bytes, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_memory::memfd::Backing;

    #[test]
    fn the_name_restores_the_segment() {
        let file = || memfd::create("stored", 4096, Backing::Shmem).unwrap();
        let key = SegmentKey { pool: PoolId::from_bits(7 << 90), number: u32::MAX };
        let name = store_name(key, u64::MAX);
        // As sd_pid_notify_with_fds(3) requires.
        assert!(name.len() <= 255 && !name.contains(':') && is_store_name(&name), "{name}");
        let stored = StoredSegment::take(&name, file()).unwrap();
        assert_eq!((stored.key, stored.bytes), (key, u64::MAX));
        // No name makes a file smaller.
        let stored = StoredSegment::take(&store_name(key, 1), file()).unwrap();
        assert_eq!(stored.bytes, 4096);
        for wrong in ["", "hostbuf-pool-data-", "hostbuf-pool-data-7-1", &(name + "-1")] {
            assert!(StoredSegment::take(wrong, file()).is_none(), "{wrong}");
        }
    }
}
