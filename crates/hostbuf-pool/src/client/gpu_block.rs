//! A block on a GPU that its producer writes.

use std::fmt;
use std::sync::Arc;

use hostbuf_cuda::{BorrowedStream, CudaContext, CudaError};

use super::pool_client::PoolClient;
use super::producer_segment::ProducerSegment;
use crate::header::{ArrayLayout, BlockHeader, InvalidHeader};
use crate::token::Token;
use crate::wire::SegmentKey;

/// A block on a GPU that its producer writes. No reader has it before it is published. Dropping it
/// without publishing frees it; work that writes it must have ended then.
#[derive(Debug)]
pub struct GpuBlock {
    segment: Arc<ProducerSegment>,
    number: u32,
    is_published: bool,
    /// The connection ends after the segment.
    _client: Arc<PoolClient>,
}

impl GpuBlock {
    /// Makes the object of a block that `segment` has taken.
    pub(super) fn new(segment: Arc<ProducerSegment>, number: u32, client: Arc<PoolClient>) -> GpuBlock {
        GpuBlock { segment, number, is_published: false, _client: client }
    }

    /// Returns the GPU's address of the first byte, a multiple of 4096, in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        let first = self.segment.data().gpu().address();
        first + self.segment.block_bytes() * u64::from(self.number)
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a block has at least one byte")]
    pub fn len(&self) -> usize {
        self.segment.block_bytes() as usize
    }

    /// Returns the context in which the block is mapped.
    #[must_use]
    pub fn context(&self) -> &CudaContext {
        self.segment.data().gpu().context()
    }

    /// Returns the identity of the block's segment.
    #[must_use]
    pub fn segment(&self) -> SegmentKey {
        self.segment.key()
    }

    /// Returns the number of the block in its segment.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Publishes an array at the beginning of the block. All work that writes it has ended.
    ///
    /// # Errors
    /// [`GpuPublishError`] with the block if the array does not lie within it.
    pub fn publish(self, layout: ArrayLayout) -> Result<Token, GpuPublishError> {
        self.publish_with(BlockHeader::new(layout), None)
    }

    /// Publishes an array at the beginning of the block, which `stream` writes. It does not wait:
    /// readers get the block at once, and their streams wait until the GPU has completed all work
    /// that `stream` has now ([`GpuBlockRef::wait_ready`](crate::GpuBlockRef::wait_ready)).
    ///
    /// # Errors
    /// [`GpuPublishError`] with the block if the array does not lie within it, and the driver's,
    /// for example for a stream of another GPU.
    pub fn publish_after(
        self,
        layout: ArrayLayout,
        stream: &BorrowedStream,
    ) -> Result<Token, GpuPublishError> {
        self.publish_with(BlockHeader::new(layout), Some(stream))
    }

    /// Publishes the block with a header, after the work of a stream if there is one. Its
    /// generation, sequence number and time of publication are set.
    ///
    /// # Errors
    /// As [`publish_after`](GpuBlock::publish_after).
    ///
    /// # Panics
    /// In a forked child.
    pub fn publish_with(
        mut self,
        mut header: BlockHeader,
        stream: Option<&BorrowedStream>,
    ) -> Result<Token, GpuPublishError> {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's blocks");
        if let Err(error) = header.check_bounds(self.segment.block_bytes()) {
            return Err(GpuPublishError { reason: GpuPublishFailure::InvalidHeader(error), block: self });
        }
        let event = self.segment.data().gpu().event(self.number);
        if let Some(Err(error)) = stream.map(|stream| event.record(stream)) {
            return Err(GpuPublishError { reason: GpuPublishFailure::Cuda(error), block: self });
        }
        self.segment.publish(self.number, &mut header);
        self.is_published = true;
        let key = self.segment.key();
        Ok(Token {
            pool: key.pool,
            segment: key.number,
            block: self.number,
            generation: header.generation,
            length: header.length,
        })
    }
}

impl Drop for GpuBlock {
    fn drop(&mut self) {
        if !self.is_published && self.segment.is_mapped() {
            self.segment.free(self.number);
        }
    }
}

/// The reason why a block on a GPU is not published, and the block, which is still writable.
#[derive(Debug)]
#[non_exhaustive]
pub struct GpuPublishError {
    /// The reason.
    pub reason: GpuPublishFailure,
    /// The block.
    pub block: GpuBlock,
}

/// The reason why a block on a GPU is not published.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuPublishFailure {
    /// The header describes more than the block.
    InvalidHeader(InvalidHeader),
    /// The driver has refused to record the work of the stream.
    Cuda(CudaError),
}

impl fmt::Display for GpuPublishFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuPublishFailure::InvalidHeader(error) => error.fmt(f),
            GpuPublishFailure::Cuda(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for GpuPublishFailure {}

impl fmt::Display for GpuPublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for GpuPublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}
