//! A block that a reader's process has mapped.

use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hostbuf_pool::{SegmentReader, UnpublishedRef};
use zenoh::shm::{ChunkID, ShmSegment};

/// A part of this process that is told when zenoh has mapped a block.
pub(crate) trait MapObserver: fmt::Debug + Send + Sync {
    /// Notes that a block was mapped.
    fn mapped(&self);
}

/// A block that a reader's process has mapped, which is a segment for zenoh. zenoh keeps one
/// reference to it for ever, and one for each buffer.
#[derive(Debug)]
pub(crate) struct BlockSegment {
    block: u32,
    state: Mutex<BlockSegmentState>,
    observer: Weak<dyn MapObserver>,
}

#[derive(Debug)]
struct BlockSegmentState {
    /// `None` after the end of the pool's segment.
    reader: Option<SegmentReader>,
    /// The hold of this process while zenoh has buffers.
    held: Option<UnpublishedRef>,
}

/// The state of a block after a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweptState {
    /// Buffers of zenoh refer to it.
    InUse,
    /// Nothing refers to it.
    Idle,
    /// It is unmapped.
    Ended,
}

impl BlockSegment {
    pub(crate) fn new(reader: SegmentReader, block: u32, observer: Weak<dyn MapObserver>) -> BlockSegment {
        let state = BlockSegmentState { reader: Some(reader), held: None };
        BlockSegment { block, state: Mutex::new(state), observer }
    }

    /// Ends the hold if zenoh has no buffer any more, and unmaps the block after the end of the
    /// segment.
    pub(crate) fn sweep(self: &Arc<BlockSegment>) -> SweptState {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // zenoh's own reference and that of the caller. A thread that is about to map has another.
        if Arc::strong_count(self) > 2 {
            return SweptState::InUse;
        }
        // The buffers were read before their references went.
        fence(Ordering::SeqCst);
        state.held = None;
        if state.reader.as_ref().is_some_and(SegmentReader::is_ended) {
            state.reader = None;
        }
        if state.reader.is_none() { SweptState::Ended } else { SweptState::Idle }
    }
}

impl ShmSegment for BlockSegment {
    /// Holds the block, whose generation has `generation_low` as its lower half, and returns its
    /// address.
    fn map(&self, generation_low: ChunkID) -> zenoh::Result<*mut u8> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reader) = &state.reader else { return Err("the segment of the message has ended".into()) };
        let held = reader.hold(self.block, generation_low).map_err(|error| {
            tracing::warn!(block = self.block, %error, "a message is lost");
            error
        })?;
        let address = held.as_ptr().cast_mut();
        // The hold of an earlier content ends after the new one has begun.
        state.held = Some(held);
        drop(state);
        if let Some(observer) = self.observer.upgrade() {
            observer.mapped();
        }
        Ok(address)
    }
}
