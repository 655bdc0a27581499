//! The blocks into which a receiver writes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{Block, Pool, PoolError, Producer, ProducerOptions, TakeError};

use super::options::MirrorReceiverOptions;
use crate::refusal::MirrorRefusal;

/// The time after which a thread that waits for a block checks whether its connection has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The size of a page.
const PAGE: u64 = 4096;

/// The blocks into which a receiver writes: one segment, which is replaced when a frame is longer
/// than its blocks.
#[derive(Debug)]
pub(super) struct BlockSupply {
    pool: Pool,
    options: MirrorReceiverOptions,
    producer: Mutex<Option<Arc<Producer>>>,
}

impl BlockSupply {
    /// Makes a supply without a segment, which the first frame makes.
    pub(super) fn new(pool: Pool, options: MirrorReceiverOptions) -> BlockSupply {
        BlockSupply { pool, options, producer: Mutex::new(None) }
    }

    /// Takes a block of at least `length` bytes, for which it waits at most `limit`, or until
    /// `is_over`.
    ///
    /// # Errors
    /// [`MirrorRefusal::Full`]; [`MirrorRefusal::Pool`].
    pub(super) fn take(
        &self,
        length: u64,
        limit: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Block, MirrorRefusal> {
        let refused = |error: PoolError| MirrorRefusal::Pool { why: error.to_string() };
        let producer = self.producer(length).map_err(refused)?;
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            match producer.take_timeout(left.min(CHECK_INTERVAL)) {
                Ok(block) => return Ok(block),
                Err(TakeError::Timeout { .. }) if left > CHECK_INTERVAL && !is_over() => {}
                Err(TakeError::Timeout { details, .. }) => {
                    return Err(MirrorRefusal::Full { waited: begun.elapsed(), details });
                }
                Err(TakeError::Pool(error)) => return Err(refused(error)),
                Err(error) => return Err(MirrorRefusal::Pool { why: error.to_string() }),
            }
        }
    }

    /// Returns a producer with blocks of at least `length` bytes.
    fn producer(&self, length: u64) -> Result<Arc<Producer>, PoolError> {
        let mut present = self.producer.lock().ignore_poison();
        if let Some(producer) = &*present
            && producer.block_bytes() >= length
        {
            return Ok(producer.clone());
        }
        // Frames that grow little by little do not need a segment each.
        let twice = present.as_ref().map_or(0, |producer| producer.block_bytes() * 2);
        let length = length.max(twice.min(self.options.most() / PAGE * PAGE));
        // The blocks of the segment before are free for the new one, as far as nobody reads them.
        *present = None;
        let producer = Arc::new(self.pool.producer(&self.producer_options(length))?);
        *present = Some(producer.clone());
        Ok(producer)
    }

    fn producer_options(&self, length: u64) -> ProducerOptions {
        let MirrorReceiverOptions { block_bytes, blocks, retain, limit, readers, stream, .. } = &self.options;
        let bytes = length.max(*block_bytes).next_multiple_of(PAGE);
        let most = u32::try_from(limit / bytes).unwrap_or(u32::MAX).min(ProducerOptions::MAX_BLOCKS);
        let blocks = (*blocks).min(most).max(2);
        // One reader may hold all copies: the sender's deadline bounds what that costs.
        let options = ProducerOptions::new(bytes, blocks).readers(*readers).quota(blocks).stream(stream);
        match retain {
            Some(last) => options.retain((*last).min(blocks - 1)),
            None => options,
        }
    }
}
