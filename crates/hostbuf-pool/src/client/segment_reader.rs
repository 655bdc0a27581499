//! A segment of another process, for blocks that are not published.

use std::sync::Arc;

use super::acquire_error::AcquireError;
use super::attached_segment::SharedSegment;
use super::pool_client::PoolClient;
use super::unpublished_ref::UnpublishedRef;
use crate::wire::SegmentKey;

/// A segment that this process reads, for a transport with reference counts of its own, such as
/// zenoh's: it passes blocks on that their producer has not published.
///
/// The transport states which block it passes on, and the lower half of its generation. A reader
/// that comes too late gets [`AcquireError::Gone`], as with a token.
#[derive(Clone, Debug)]
pub struct SegmentReader {
    segment: SharedSegment,
    /// The connection ends after the segment.
    client: Arc<PoolClient>,
}

impl SegmentReader {
    pub(super) fn new(segment: SharedSegment, client: Arc<PoolClient>) -> SegmentReader {
        SegmentReader { segment, client }
    }

    /// Returns the identity of the segment.
    #[must_use]
    pub fn key(&self) -> SegmentKey {
        self.segment.key()
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.segment.terms().geometry.blocks()
    }

    /// Returns the length of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.segment.terms().geometry.block_bytes()
    }

    /// Returns whether the segment has ended. Nothing can be held any more, and the segment is
    /// unmapped when all readers and references of it are dropped.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.segment.is_ended()
    }

    /// Holds a block that its producer has taken and neither published nor given back.
    /// `generation_low` is the lower half of [`Block::generation`](crate::Block::generation). It
    /// makes no system call.
    ///
    /// # Errors
    /// [`AcquireError::Gone`] for a block that the producer has given back since;
    /// [`AcquireError::OutOfRange`]; [`AcquireError::Quota`].
    ///
    /// # Panics
    /// In a child forked from the process that attached the segment: the child has no mapping.
    pub fn hold(&self, block: u32, generation_low: u32) -> Result<UnpublishedRef, AcquireError> {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's blocks");
        let generation = self.segment.hold_unpublished(block, generation_low)?;
        Ok(UnpublishedRef::new(self.segment.clone(), block, generation, self.client.clone()))
    }
}
