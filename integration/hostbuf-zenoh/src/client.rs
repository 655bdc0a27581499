//! zenoh's client for the blocks of a pool.

use std::sync::Arc;

use hostbuf_pool::{Pool, PoolId, SegmentKey};
use zenoh::shm::{ProtocolID, SegmentID, ShmClient, ShmSegment, WithProtocolID};

use crate::block_address::BlockAddress;
use crate::block_segment::BlockSegment;
use crate::hold_sweeper::HoldSweeper;
use crate::protocol::protocol_id;

/// zenoh's client for the blocks of one pool. A session that has it announces that it reads them.
#[derive(Debug)]
pub struct PoolShmClient {
    pool: Pool,
    id: PoolId,
    sweeper: Arc<HoldSweeper>,
}

impl PoolShmClient {
    /// Makes the client for the segments of the pool `id`, the connected one or a predecessor.
    pub(crate) fn new(pool: Pool, id: PoolId, sweeper: Arc<HoldSweeper>) -> PoolShmClient {
        PoolShmClient { pool, id, sweeper }
    }
}

impl WithProtocolID for PoolShmClient {
    fn id(&self) -> ProtocolID {
        protocol_id(self.id)
    }
}

impl ShmClient for PoolShmClient {
    fn attach(&self, segment: SegmentID) -> zenoh::Result<Arc<dyn ShmSegment>> {
        let address = BlockAddress::from_id(segment);
        let key = SegmentKey { pool: self.id, number: address.segment() };
        let reader = self.pool.attach(key).map_err(|error| {
            // zenoh drops the message and says nothing.
            tracing::warn!(%key, %error, "a message is lost: its segment cannot be attached");
            error
        })?;
        let sweeper = Arc::downgrade(&self.sweeper);
        let segment = Arc::new(BlockSegment::new(reader, address.block(), sweeper));
        self.sweeper.add(&segment);
        Ok(segment)
    }
}
