//! A request for a segment that is not known yet.

use std::time::Instant;

use crate::wire::SegmentKey;

/// A request for a segment that a client of an earlier broker may still hand back.
#[derive(Debug)]
pub(super) struct PendingAttach {
    pub(super) client: u64,
    pub(super) request: u64,
    pub(super) key: SegmentKey,
    pub(super) since: Instant,
}
