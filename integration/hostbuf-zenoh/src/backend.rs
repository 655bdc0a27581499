//! zenoh's provider backend.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hostbuf_pool::{Producer, SegmentKey};
use zenoh::shm::{
    AllocatedChunk, ChunkAllocResult, ChunkDescriptor, MemoryLayout, ProtocolID, PtrInSegment,
    ShmProviderBackend, WithProtocolID, ZAllocError, ZLayoutError,
};

use crate::block_address::BlockAddress;
use crate::block_ledger::{BlockLedger, TakenBlock};
use crate::protocol::protocol_id;
use crate::provider_error::ProviderError;

/// The alignment of a block in bytes.
const ALIGNMENT: usize = 4096;

/// zenoh's provider backend over the blocks of a producer: one block for each message.
///
/// It works with each policy of zenoh: blocks that only a killed process held are taken back while
/// allocating. [`PoolPolicy`](crate::PoolPolicy) also removes them from zenoh's own list.
#[derive(Clone, Debug)]
pub struct PoolBackend {
    segment: SegmentKey,
    block_bytes: usize,
    ledger: Arc<Mutex<BlockLedger>>,
}

impl PoolBackend {
    /// Makes the backend of a producer whose blocks nobody else takes.
    ///
    /// # Errors
    /// [`ProviderError::Unaddressable`] for more than 256 blocks, or in a pool that has made more
    /// than 16 million segments.
    pub fn new(producer: Producer) -> Result<PoolBackend, ProviderError> {
        let segment = producer.segment();
        let blocks = producer.blocks();
        if BlockAddress::new(segment.number, blocks - 1).is_none() {
            return Err(ProviderError::Unaddressable { segment: segment.number, blocks });
        }
        let block_bytes = usize::try_from(producer.block_bytes()).unwrap_or(usize::MAX);
        Ok(PoolBackend { segment, block_bytes, ledger: Arc::new(Mutex::new(BlockLedger::new(producer))) })
    }

    fn ledger(&self) -> MutexGuard<'_, BlockLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether zenoh still counts chunks whose blocks were taken back.
    pub(crate) fn has_stale_chunks(&self) -> bool {
        self.ledger().has_stale_chunks()
    }

    /// Returns the number of readers that have ended or have left the segment.
    #[must_use]
    pub fn departures(&self) -> u64 {
        self.ledger().producer().departures()
    }

    fn fits(&self, layout: &MemoryLayout) -> bool {
        layout.size().get() <= self.block_bytes && layout.alignment().get_alignment_value().get() <= ALIGNMENT
    }
}

impl WithProtocolID for PoolBackend {
    fn id(&self) -> ProtocolID {
        protocol_id(self.segment.pool)
    }
}

impl ShmProviderBackend for PoolBackend {
    fn alloc(&self, layout: &MemoryLayout) -> ChunkAllocResult {
        if !self.fits(layout) {
            return Err(ZAllocError::Other);
        }
        let taken = self.ledger().take().map_err(|error| {
            tracing::error!(%error, "taking a block for zenoh");
            ZAllocError::Other
        })?;
        let TakenBlock { number, generation_low, address, references } =
            taken.ok_or(ZAllocError::OutOfMemory)?;
        let block = BlockAddress::new(self.segment.number, number).ok_or(ZAllocError::Other)?;
        let length = self.block_bytes.try_into().map_err(|_| ZAllocError::Other)?;
        Ok(AllocatedChunk::new(
            ChunkDescriptor::new(block.to_id(), generation_low, length),
            PtrInSegment::new(address, references),
        ))
    }

    fn free(&self, chunk: &ChunkDescriptor) {
        let address = BlockAddress::from_id(chunk.segment);
        if address.segment() == self.segment.number {
            self.ledger().give_back(address.block(), chunk.chunk);
        }
    }

    fn defragment(&self) -> usize {
        0
    }

    fn available(&self) -> usize {
        self.ledger().free_blocks().saturating_mul(self.block_bytes)
    }

    fn layout_for(&self, layout: MemoryLayout) -> Result<MemoryLayout, ZLayoutError> {
        if self.fits(&layout) { Ok(layout) } else { Err(ZLayoutError::ProviderIncompatibleLayout) }
    }
}
