//! The hash of a client's name.

/// Returns the hash by which a producer finds the rows of the readers that it waits for.
pub(crate) fn name_hash(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}
