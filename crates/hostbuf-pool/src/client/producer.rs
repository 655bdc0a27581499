//! A producer of blocks.

use std::sync::Arc;
use std::time::Duration;

use super::block::Block;
use super::pending_take::PendingTake;
use super::pool_client::PoolClient;
use super::producer_segment::ProducerSegment;
use super::take_error::TakeError;
use crate::error::PoolError;
use crate::wire::SegmentKey;

/// A producer of blocks, with a segment of its own. Its threads may share it.
///
/// When it is dropped, what it has published stays readable for the broker's linger time, and until
/// its last reader has released it.
#[derive(Debug)]
pub struct Producer {
    segment: Arc<ProducerSegment>,
    client: Arc<PoolClient>,
}

impl Producer {
    pub(super) fn new(segment: Arc<ProducerSegment>, client: Arc<PoolClient>) -> Producer {
        Producer { segment, client }
    }

    /// Takes a free block, if there is one. It makes no system call.
    ///
    /// # Errors
    /// [`TakeError::Pool`] in a forked child, [`TakeError::Closed`].
    pub fn try_take(&self) -> Result<Option<Block>, TakeError> {
        self.check()?;
        Ok(self.segment.try_take().map(|(block, _)| self.block(block)))
    }

    /// Takes a free block, for which it waits.
    ///
    /// # Errors
    /// [`TakeError::Pool`], [`TakeError::Closed`].
    pub fn take(&self) -> Result<Block, TakeError> {
        self.check()?;
        self.segment.take(None).map(|(block, _)| self.block(block))
    }

    /// Takes a free block, for which it waits at most `limit`.
    ///
    /// # Errors
    /// [`TakeError::Timeout`] with the use of all blocks, [`TakeError::Closed`].
    pub fn take_timeout(&self, limit: Duration) -> Result<Block, TakeError> {
        self.check()?;
        self.segment.take(Some(limit)).map(|(block, _)| self.block(block))
    }

    /// Takes a free block, for which the task waits. It works in every runtime: while tasks wait,
    /// a thread of this crate does on their behalf. Tasks get their blocks in the order in which
    /// they have asked. A dropped future takes none.
    ///
    /// # Errors
    /// [`TakeError::Pool`], [`TakeError::Closed`].
    pub async fn take_async(&self) -> Result<Block, TakeError> {
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

    fn block(&self, number: u32) -> Block {
        Block::new(self.segment.clone(), number, self.client.clone())
    }

    /// Returns the identity of the segment.
    #[must_use]
    pub fn segment(&self) -> SegmentKey {
        self.segment.key()
    }

    /// Returns the number of readers that have ended or have detached since the segment was made.
    /// Their holds are gone when they are counted. It makes no system call.
    ///
    /// # Panics
    /// In a child forked from the process that made the producer: the child has no mapping.
    #[must_use]
    pub fn departures(&self) -> u64 {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's producers");
        self.segment.departures()
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
