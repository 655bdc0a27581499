//! A producer of blocks on a GPU.

use std::sync::Arc;
use std::time::Duration;

use hostbuf_cuda::CudaContext;

use super::gpu_block::GpuBlock;
use super::pending_take::PendingTake;
use super::pool_client::PoolClient;
use super::producer_segment::ProducerSegment;
use super::take_error::TakeError;
use crate::error::PoolError;
use crate::wire::SegmentKey;

/// A producer of blocks on a GPU, with a segment of its own. Its threads may share it.
///
/// When it and its blocks are dropped, it waits until the work that writes published blocks has
/// ended. They stay readable for the broker's linger time, and until their last reader has released
/// them.
#[derive(Debug)]
pub struct GpuProducer {
    segment: Arc<ProducerSegment>,
    client: Arc<PoolClient>,
}

impl GpuProducer {
    pub(super) fn new(segment: Arc<ProducerSegment>, client: Arc<PoolClient>) -> GpuProducer {
        GpuProducer { segment, client }
    }

    /// Takes a free block, if there is one. It makes no system call.
    ///
    /// # Errors
    /// [`TakeError::Pool`] in a forked child, [`TakeError::Closed`].
    pub fn try_take(&self) -> Result<Option<GpuBlock>, TakeError> {
        self.check()?;
        Ok(self.segment.try_take().map(|(block, _)| self.block(block)))
    }

    /// Takes a free block, for which it waits.
    ///
    /// # Errors
    /// [`TakeError::Pool`], [`TakeError::Closed`].
    pub fn take(&self) -> Result<GpuBlock, TakeError> {
        self.check()?;
        self.segment.take(None).map(|(block, _)| self.block(block))
    }

    /// Takes a free block, for which it waits at most `limit`.
    ///
    /// # Errors
    /// [`TakeError::Timeout`] with the use of all blocks, [`TakeError::Closed`].
    pub fn take_timeout(&self, limit: Duration) -> Result<GpuBlock, TakeError> {
        self.check()?;
        self.segment.take(Some(limit)).map(|(block, _)| self.block(block))
    }

    /// Takes a free block, for which the task waits. It works in every runtime: while tasks wait,
    /// a thread of this crate does on their behalf. Tasks get their blocks in the order in which
    /// they have asked. A dropped future takes none.
    ///
    /// # Errors
    /// [`TakeError::Pool`], [`TakeError::Closed`].
    pub async fn take_async(&self) -> Result<GpuBlock, TakeError> {
        PendingTake::new(&self.segment).await.map(|number| self.block(number))
    }

    /// Ends all waits for a block with [`TakeError::Closed`], also those of other threads and of
    /// tasks, and gives out no more blocks. The wakers of the tasks are called before it returns.
    /// Blocks that were taken or published stay valid. In a forked child it does nothing.
    pub fn close(&self) {
        if self.segment.is_mapped() {
            self.segment.close();
        }
    }

    fn check(&self) -> Result<(), TakeError> {
        if !self.segment.is_mapped() {
            return Err(PoolError::Forked.into());
        }
        if self.segment.is_closed() { Err(TakeError::Closed) } else { Ok(()) }
    }

    fn block(&self, number: u32) -> GpuBlock {
        GpuBlock::new(self.segment.clone(), number, self.client.clone())
    }

    /// Returns the context in which the blocks are mapped.
    #[must_use]
    pub fn context(&self) -> &CudaContext {
        self.segment.data().gpu().context()
    }

    /// Returns the identity of the segment.
    #[must_use]
    pub fn segment(&self) -> SegmentKey {
        self.segment.key()
    }

    /// Returns the length of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.segment.block_bytes()
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.segment.blocks()
    }
}
