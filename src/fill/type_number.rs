//! Numbers that identify types.

/// Returns a digest of the name and the layout of `T`. It detects mistakes, but not malice.
pub(super) fn type_number<T>() -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(std::any::type_name::<T>().as_bytes());
    hash.update(&size_of::<T>().to_ne_bytes());
    hash.update(&align_of::<T>().to_ne_bytes());
    hash.digest()
}
