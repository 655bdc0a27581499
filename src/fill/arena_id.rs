//! The identity of an arena.

use std::ptr::NonNull;

/// The identification of the arena of one fill of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaId {
    pub(super) start: NonNull<u8>,
    pub(super) length: u64,
    pub(super) generation: u64,
}
