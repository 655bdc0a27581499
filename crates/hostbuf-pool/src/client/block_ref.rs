//! A reader's hold on a published block.

#![allow(unsafe_code, reason = "makes slices of a block that is held")]

use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf_register::{Access, DeviceName, Registrar};

use super::attached_segment::SharedSegment;
use super::pool_client::PoolClient;
use crate::dma::DmaPath;
use crate::header::{ArrayLayout, BlockHeader};
use crate::releases::{self, Completion};

/// A reader's hold on a published block. The producer does not reuse the block while it exists.
///
/// The bytes lie in memory that the producer's process can still write to. A producer that uses
/// this crate does not; [`as_ptr`](BlockRef::as_ptr) is for producers that are not trusted to.
#[derive(Debug)]
pub struct BlockRef {
    segment: SharedSegment,
    block: u32,
    header: BlockHeader,
    /// The connection ends after the segment.
    client: Arc<PoolClient>,
}

impl BlockRef {
    /// Makes the object of a hold that `segment` has counted.
    pub(super) fn new(
        segment: SharedSegment,
        block: u32,
        header: BlockHeader,
        client: Arc<PoolClient>,
    ) -> BlockRef {
        BlockRef { segment, block, header, client }
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

    /// Returns the address of the first byte of the content, a multiple of 4096.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.address().as_ptr()
    }

    fn address(&self) -> NonNull<u8> {
        self.segment.block(self.block)
    }

    /// Returns the number of bytes of the content.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty content is no special case")]
    pub fn len(&self) -> usize {
        self.header.length as usize
    }

    /// Returns whether the bytes are mapped in this process: they are not in a forked child.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.segment.is_mapped()
    }

    /// Returns the content.
    ///
    /// # Panics
    /// In a child forked from the process that acquired the block: the child has no mapping.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's blocks");
        // SAFETY: the bytes are mapped, and stay so while the segment lives. Its producer writes to
        // the block when no reader holds it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl BlockRef {
    /// Returns the way in which a device reads the content. The first call for a segment registers
    /// all of its blocks with the device, and the first call of all opens the device: before it, no
    /// driver is loaded.
    #[must_use]
    pub fn dma(&self, device: &DeviceName) -> DmaPath {
        self.segment.dma(self.block, device)
    }

    /// Returns the key by which a device of the caller reads the content at
    /// [`as_ptr`](BlockRef::as_ptr). The first call for a segment registers all of its blocks with
    /// `registrar` for `access`; the registration ends with the segment.
    ///
    /// # Errors
    /// As [`Registrar::register`]: the blocks are mapped shared and read-only, which RDMA devices
    /// register from Linux 6.2 on. [`Error::Forked`](hostbuf_register::Error::Forked).
    pub fn register<R: Registrar>(
        &self,
        registrar: &Arc<R>,
        access: Access,
    ) -> hostbuf_register::Result<R::Key> {
        self.segment.register(registrar, access)
    }

    /// Ends the hold when an operation of a device has completed, such as a copy of the content. It
    /// does not wait.
    pub fn release_after(self, completion: impl Completion) {
        releases::add(Box::new(completion), Box::new(self));
    }
}

/// Adds a hold on the same block.
impl Clone for BlockRef {
    fn clone(&self) -> BlockRef {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's blocks");
        self.segment.hold_again(self.block);
        let (segment, client) = (self.segment.clone(), self.client.clone());
        BlockRef { segment, block: self.block, header: self.header, client }
    }
}

impl Drop for BlockRef {
    fn drop(&mut self) {
        // The holds are those of the parent.
        if self.segment.is_mapped() {
            self.segment.release(self.block, self.header.generation);
        }
    }
}
