//! A reader's hold on a block that is not published.

use std::sync::Arc;

use super::attached_segment::SharedSegment;
use super::pool_client::PoolClient;

/// A reader's hold on a block that its producer has not published. While it exists, a producer
/// that [retires](crate::Block::retire) the block does not take it again.
#[derive(Debug)]
pub struct UnpublishedRef {
    segment: SharedSegment,
    block: u32,
    generation: u64,
    /// The connection ends after the segment.
    _client: Arc<PoolClient>,
}

impl UnpublishedRef {
    /// Makes the object of a hold that `segment` has counted.
    pub(super) fn new(
        segment: SharedSegment,
        block: u32,
        generation: u64,
        client: Arc<PoolClient>,
    ) -> UnpublishedRef {
        UnpublishedRef { segment, block, generation, _client: client }
    }

    /// Returns the address of the first byte of the block, a multiple of 4096. The block has no
    /// header, and the transport states the length of the content.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.segment.block(self.block).as_ptr()
    }

    /// Returns the generation of the block.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for UnpublishedRef {
    fn drop(&mut self) {
        // The holds are those of the parent.
        if self.segment.is_mapped() {
            self.segment.release(self.block, self.generation);
        }
    }
}
