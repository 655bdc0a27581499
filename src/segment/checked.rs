//! Integers in shared memory with a check of their own.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// An integer of up to 48 bits with a check of 16 bits: a byte that another process flipped causes
/// an error, never another value.
#[repr(transparent)]
pub(super) struct Checked(AtomicU64);

const BITS: u32 = 48;

impl Checked {
    /// The largest value.
    pub(super) const MAX: u64 = (1 << BITS) - 1;

    /// Returns `value` with its check, as it is stored in memory.
    pub(super) fn encode(value: u64) -> u64 {
        debug_assert!(value >> BITS == 0);
        value | (xxhash_rust::xxh3::xxh3_64(&value.to_ne_bytes()) >> BITS) << BITS
    }

    /// Returns the value of a word that was read from memory. `word` is its name in the error.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the check does not match.
    pub(super) fn decode(word: &'static str, found: u64) -> Result<u64> {
        let value = found & ((1 << BITS) - 1);
        if Checked::encode(value) == found { Ok(value) } else { Err(Error::Corrupt { word, found }) }
    }

    /// Reads the value.
    ///
    /// # Errors
    /// As [`decode`](Checked::decode).
    pub(super) fn load(&self, word: &'static str) -> Result<u64> {
        Checked::decode(word, self.0.load(Ordering::Acquire))
    }

    /// Writes the value.
    pub(super) fn store(&self, value: u64) {
        self.0.store(Checked::encode(value), Ordering::Release);
    }

    /// Replaces the value by the result of `change`, atomically, unless `change` returns `None`.
    /// Returns the value before the change, or `None` if it was not changed.
    ///
    /// # Errors
    /// As [`decode`](Checked::decode).
    pub(super) fn update(
        &self,
        word: &'static str,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<Option<u64>> {
        let mut found = self.0.load(Ordering::Acquire);
        loop {
            let value = Checked::decode(word, found)?;
            let Some(new) = change(value) else { return Ok(None) };
            let new = Checked::encode(new);
            match self.0.compare_exchange_weak(found, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Some(value)),
                Err(other) => found = other,
            }
        }
    }
}
