//! Numbers in records.

use xxhash_rust::xxh3::xxh3_64;

use super::InvalidRecord;

/// The number of bytes of the hash at the end of a record.
const HASH: usize = 8;

/// Writes a field.
pub(super) fn put<const N: usize>(record: &mut [u8], at: usize, field: [u8; N]) {
    record[at..at + N].copy_from_slice(&field);
}

/// Returns a field.
pub(super) fn part<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    record[at..at + N].try_into().expect("all fields lie within the record")
}

/// Returns a field of 8 bytes.
pub(super) fn number(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(part(record, at))
}

/// Writes the hash of the record behind its fields.
pub(super) fn seal(record: &mut [u8]) {
    let at = record.len() - HASH;
    let hash = xxh3_64(&record[..at]);
    put(record, at, hash.to_le_bytes());
}

/// Checks the magic bytes and the hash of a record.
///
/// # Errors
/// [`InvalidRecord`].
pub(super) fn check(record: &[u8], magic: [u8; 8]) -> Result<(), InvalidRecord> {
    if !record.starts_with(&magic) {
        return Err(InvalidRecord::NoRecord);
    }
    let at = record.len() - HASH;
    if xxh3_64(&record[..at]).to_le_bytes() == part(record, at) {
        Ok(())
    } else {
        Err(InvalidRecord::Damaged("the hash of a record is wrong"))
    }
}
