//! A request that waits.

use std::time::Instant;

use crate::wire::SegmentTerms;

/// A request for a segment that waits.
#[derive(Debug)]
pub(super) struct PendingCreate {
    pub(super) client: u64,
    pub(super) request: u64,
    pub(super) terms: SegmentTerms,
    pub(super) stream: String,
    pub(super) since: Instant,
}
