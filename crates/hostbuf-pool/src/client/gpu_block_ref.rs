//! A reader's hold on a published block on a GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hostbuf_cuda::{BorrowedStream, CudaContext, CudaEvent, DeviceSpan};

use super::attached_segment::SharedSegment;
use super::imported_gpu::GpuView;
use super::pool_client::PoolClient;
use super::ready_error::ReadyError;
use crate::dma::{CopyReason, DmaPath};
use crate::header::{ArrayLayout, BlockHeader};
use crate::releases::{self, Completion};

/// A reader's hold on a published block on a GPU. The producer does not reuse the block while it
/// exists.
///
/// The GPU may still write the content. [`wait_ready`](GpuBlockRef::wait_ready) makes a stream wait
/// for it.
#[derive(Debug)]
pub struct GpuBlockRef {
    segment: SharedSegment,
    block: u32,
    header: BlockHeader,
    /// The connection ends after the segment.
    client: Arc<PoolClient>,
}

impl GpuBlockRef {
    /// Makes the object of a hold that `segment` has counted. The segment is imported.
    pub(super) fn new(
        segment: SharedSegment,
        block: u32,
        header: BlockHeader,
        client: Arc<PoolClient>,
    ) -> GpuBlockRef {
        GpuBlockRef { segment, block, header, client }
    }

    fn view(&self) -> &GpuView {
        self.segment.gpu().expect("it was imported before the block was held")
    }

    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// Returns the element type, the shape and the strides of the content.
    #[must_use]
    pub fn layout(&self) -> &ArrayLayout {
        &self.header.layout
    }

    /// Returns the GPU's address of the first byte of the content, a multiple of 4096, in this
    /// process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.view().address() + self.segment.terms().geometry.block_offset(self.block)
    }

    /// Returns the content as a span of the GPU's memory, for copies.
    #[must_use]
    pub fn span(&self) -> DeviceSpan {
        DeviceSpan::new(self.address(), self.len())
    }

    /// Returns the number of bytes of the content.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty content is no special case")]
    pub fn len(&self) -> usize {
        self.header.length as usize
    }

    /// Returns the context in which the block is mapped: the primary context of its GPU.
    #[must_use]
    pub fn context(&self) -> &CudaContext {
        self.view().context()
    }

    /// Returns the reason why this process could write to the block. It is `None` where the driver
    /// maps memory for reading only.
    #[must_use]
    pub fn why_writable(&self) -> Option<&str> {
        self.view().writable()
    }

    /// Returns the way in which the block's GPU reads the content: in place.
    #[must_use]
    pub fn dma(&self) -> DmaPath {
        if self.segment.is_mapped() {
            DmaPath::Direct(self.address())
        } else {
            DmaPath::Copy(CopyReason::Forked)
        }
    }

    /// Makes all later work on `stream` wait until the GPU has completed the work that writes the
    /// content. It does not wait itself.
    ///
    /// If the producer is killed after this call, before its GPU has written the content, or has
    /// been killed and the broker does not know it yet, the stream waits for ever: the driver gives
    /// no way out. A reader that must not depend on the producer asks [`is_ready`] first.
    ///
    /// [`is_ready`]: GpuBlockRef::is_ready
    ///
    /// # Errors
    /// [`ReadyError::ProducerEnded`] if the producer has ended before the content was complete: the
    /// block has no valid content, and `stream` waits for nothing. [`ReadyError::Cuda`].
    pub fn wait_ready(&self, stream: &BorrowedStream) -> Result<(), ReadyError> {
        if !self.needs_event()? {
            return Ok(());
        }
        match self.view().event(self.block).and_then(|event| stream.wait(event)) {
            // The producer has completed the content meanwhile, and destroyed its events.
            Err(_) if self.is_complete() => Ok(()),
            result => result.map_err(ReadyError::from),
        }
    }

    /// Returns whether the GPU has completed the work that writes the content. It does not wait.
    ///
    /// # Errors
    /// As [`wait_ready`](GpuBlockRef::wait_ready).
    pub fn is_ready(&self) -> Result<bool, ReadyError> {
        if !self.needs_event()? {
            return Ok(true);
        }
        match self.view().event(self.block).and_then(CudaEvent::is_complete) {
            Err(_) if self.is_complete() => Ok(true),
            result => result.map_err(ReadyError::from),
        }
    }

    /// Returns whether the producer has completed all its blocks.
    fn is_complete(&self) -> bool {
        self.segment.table().counters().is_complete.load(Ordering::Acquire) != 0
    }

    /// Returns whether the content may be incomplete, and its event may be waited for.
    fn needs_event(&self) -> Result<bool, ReadyError> {
        if !self.segment.is_mapped() {
            return Err(ReadyError::Forked);
        }
        let table = self.segment.table();
        if self.is_complete() {
            return Ok(false);
        }
        if table.producer().load().is_some() {
            return Ok(true);
        }
        // No stream may wait for an event that its process will not complete any more. A producer
        // that has closed the segment in order has completed it before.
        match self.view().event(self.block).and_then(CudaEvent::is_complete) {
            _ if self.is_complete() => Ok(false),
            Ok(true) => Ok(false),
            Ok(false) => Err(ReadyError::ProducerEnded { driver: None }),
            Err(error) => Err(ReadyError::ProducerEnded { driver: Some(error) }),
        }
    }

    /// Ends the hold when an operation of a device has completed, such as a copy of the content:
    /// `block.release_after(CudaEvent::after(&stream)?)`. It does not wait.
    pub fn release_after(self, completion: impl Completion) {
        releases::add(Box::new(completion), Box::new(self));
    }
}

/// Adds a hold on the same block.
impl Clone for GpuBlockRef {
    fn clone(&self) -> GpuBlockRef {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's blocks");
        self.segment.hold_again(self.block);
        let (segment, client) = (self.segment.clone(), self.client.clone());
        GpuBlockRef { segment, block: self.block, header: self.header, client }
    }
}

impl Drop for GpuBlockRef {
    fn drop(&mut self) {
        // The holds are those of the parent.
        if self.segment.is_mapped() {
            self.segment.release(self.block, self.header.generation);
        }
    }
}
