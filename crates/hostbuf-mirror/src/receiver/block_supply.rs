//! The blocks into which a receiver writes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hostbuf_os::Bytes;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{Block, BrokerRefusal, Pool, PoolError, Producer, ProducerOptions, TakeError};

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
    state: Mutex<SupplyState>,
    /// Notified when a request for a segment has ended.
    answered: Condvar,
}

#[derive(Debug, Default)]
struct SupplyState {
    producer: Option<Arc<Producer>>,
    /// True while a thread requests a segment from the broker, which may take as long as the
    /// timeout of the pool. Nobody holds the lock meanwhile.
    is_requested: bool,
}

/// A request for a segment. There is at most one at a time.
struct SegmentRequest<'s> {
    supply: &'s BlockSupply,
}

impl Drop for SegmentRequest<'_> {
    fn drop(&mut self) {
        self.supply.state().is_requested = false;
        self.supply.answered.notify_all();
    }
}

impl BlockSupply {
    /// Makes a supply without a segment, which the first frame makes.
    pub(super) fn new(pool: Pool, options: MirrorReceiverOptions) -> BlockSupply {
        BlockSupply { pool, options, state: Mutex::default(), answered: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, SupplyState> {
        self.state.lock().ignore_poison()
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
        let begun = Instant::now();
        let producer = self.producer(length, limit, is_over)?;
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

    /// Returns a producer with blocks of at least `length` bytes. While another thread requests
    /// one, it waits at most `limit`, or until `is_over`.
    fn producer(
        &self,
        length: u64,
        limit: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Arc<Producer>, MirrorRefusal> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(producer) = &state.producer
                && producer.block_bytes() >= length
            {
                return Ok(producer.clone());
            }
            if !state.is_requested {
                break;
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() || is_over() {
                // The broker may be stopped, or have much to do.
                let (length, waited) = (Bytes(length), begun.elapsed().as_secs_f32());
                let why = format!(
                    "no block of {length} within {waited} s: the broker of the receiver's host is still making a longer segment; give frames more time, or see hostbuf stat there"
                );
                return Err(MirrorRefusal::Pool { why });
            }
            state = self.answered.wait_timeout(state, left.min(CHECK_INTERVAL)).ignore_poison().0;
        }
        state.is_requested = true;
        let present = state.producer.clone();
        drop(state);
        let _request = SegmentRequest { supply: self };
        let producer = self.request(length, present);
        let producer = producer.map_err(|error| MirrorRefusal::Pool { why: error.to_string() })?;
        // Dropping a producer writes to the broker, so the lock is not held.
        let previous = self.state().producer.replace(producer.clone());
        drop(previous);
        Ok(producer)
    }

    /// Requests a segment with blocks of at least `length` bytes. Gives the present one up first
    /// only if there is space for the new one then, but not for both.
    fn request(&self, length: u64, present: Option<Arc<Producer>>) -> Result<Arc<Producer>, PoolError> {
        let (block_bytes, bytes) = present.as_ref().map_or((0, 0), |producer| {
            (producer.block_bytes(), producer.block_bytes() * u64::from(producer.blocks()))
        });
        // Frames that grow little by little do not need a segment each.
        let length = length.max((block_bytes * 2).min(self.options.most() / PAGE * PAGE));
        let options = self.producer_options(length);
        // The limit may be u64::MAX.
        let requested = options.block_bytes.saturating_mul(u64::from(options.blocks));
        if bytes.saturating_add(requested) <= self.options.limit {
            match self.pool.producer(&options) {
                Err(PoolError::Refused(BrokerRefusal::NoSpace { available, .. }))
                    if present.is_some() && requested <= available.saturating_add(bytes) => {}
                granted => return granted.map(Arc::new),
            }
        }
        // The blocks of the segment before are free for the new one, as far as nobody reads them.
        let given_up = self.state().producer.take();
        drop((present, given_up));
        self.pool.producer(&options).map(Arc::new)
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

#[cfg(test)]
mod tests {
    use hostbuf_pool::{PoolMode, PoolOptions};

    use super::*;

    #[test]
    fn a_segment_without_a_limit_is_refused_by_the_pool() {
        let pool = Pool::connect(PoolOptions::new("there").mode(PoolMode::Private)).unwrap();
        let options = MirrorReceiverOptions::new().limit(u64::MAX);
        let most = options.most();
        let supply = BlockSupply::new(pool, options);
        assert!(supply.take(most, Duration::ZERO, &|| false).is_err());
    }

    #[test]
    fn a_frame_that_waits_for_a_longer_segment_has_an_error_of_its_own() {
        let pool = Pool::connect(PoolOptions::new("there").mode(PoolMode::Private)).unwrap();
        let supply = BlockSupply::new(pool, MirrorReceiverOptions::new());
        let _of_another_thread = SegmentRequest { supply: &supply };
        supply.state().is_requested = true;
        let refusal = supply.take(3 << 20, Duration::from_millis(20), &|| false).unwrap_err().to_string();
        assert!(refusal.starts_with("no block of 3 MiB within "), "{refusal}");
        assert!(refusal.contains("still making a longer segment"), "{refusal}");
    }
}
