//! A block that its producer writes.

#![allow(unsafe_code, reason = "makes slices of a block that no reader holds")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf_register::{Access, Registrar, RingMemory};

use super::pool_client::PoolClient;
use super::producer_segment::ProducerSegment;
use crate::header::{ArrayLayout, BlockHeader, InvalidHeader};
use crate::token::Token;
use crate::wire::SegmentKey;

/// A block that its producer writes. No reader has it before it is published. Dropping it without
/// publishing frees it.
///
/// A transport with reference counts of its own may pass a block on without publishing it: its
/// readers hold the block by a [`SegmentReader`](crate::SegmentReader) while the `Block` exists.
#[derive(Debug)]
pub struct Block {
    segment: Arc<ProducerSegment>,
    number: u32,
    is_given_back: bool,
    /// The connection ends after the segment.
    _client: Arc<PoolClient>,
}

impl Block {
    /// Makes the object of a block that `segment` has taken.
    pub(super) fn new(segment: Arc<ProducerSegment>, number: u32, client: Arc<PoolClient>) -> Block {
        Block { segment, number, is_given_back: false, _client: client }
    }

    /// Returns the address of the first byte, a multiple of 4096.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.segment.block(self.number).as_ptr()
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a block has at least one byte")]
    pub fn len(&self) -> usize {
        self.segment.block_bytes() as usize
    }

    /// Returns whether the bytes are mapped in this process: they are not in a forked child.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.segment.is_mapped()
    }

    /// Returns the bytes, which are those of an earlier content, or zeros.
    ///
    /// # Panics
    /// In a child forked from the process that took the block: the child has no mapping.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's blocks");
        // SAFETY: the bytes are mapped, and stay so while the segment lives. No reader holds the
        // block, and no other object in this process stands for it.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }

    /// Returns the key by which a device of the caller accesses the bytes at
    /// [`as_mut_ptr`](Block::as_mut_ptr). The first call for a segment registers all of its blocks
    /// with `registrar` for `access`; the registration ends with the segment.
    ///
    /// # Errors
    /// As [`Registrar::register`]; [`Error::Forked`](hostbuf_register::Error::Forked).
    pub fn register<R: Registrar>(
        &self,
        registrar: &Arc<R>,
        access: Access,
    ) -> hostbuf_register::Result<R::Key> {
        self.segment.register(registrar, access)
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

    /// Returns the generation of the block: the number of times that it was taken before.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.segment.generation(self.number)
    }

    /// Ends the writing of a block that readers hold as an
    /// [`UnpublishedRef`](crate::UnpublishedRef). No reader gets it any more, and it is taken again
    /// when none holds it. Dropping the block instead does not wait for them.
    pub fn retire(mut self) {
        if self.segment.is_mapped() {
            self.segment.retire_unpublished(self.number);
        }
        self.is_given_back = true;
    }

    /// Publishes an array at the beginning of the block, and returns the token for its readers.
    ///
    /// # Errors
    /// [`PublishError`] with the block if the array does not lie within it.
    pub fn publish(self, layout: ArrayLayout) -> Result<Token, PublishError> {
        self.publish_with(BlockHeader::new(layout))
    }

    /// Publishes the block with a header. Its generation, sequence number and time of publication
    /// are set.
    ///
    /// # Errors
    /// [`PublishError`] with the block if the header describes more than the block.
    ///
    /// # Panics
    /// In a forked child.
    pub fn publish_with(mut self, mut header: BlockHeader) -> Result<Token, PublishError> {
        assert!(self.segment.is_mapped(), "a forked child has no part in its parent's blocks");
        if let Err(reason) = header.check_bounds(self.segment.block_bytes()) {
            return Err(PublishError { reason, block: self });
        }
        self.segment.publish(self.number, &mut header);
        self.is_given_back = true;
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

// SAFETY: the bytes are mapped as long as the block exists, and initialised. No reader holds the
// block, and no other object in this process stands for it. The ring that has it gives out nothing
// by which it could be published.
unsafe impl RingMemory for Block {
    fn address(&self) -> NonNull<u8> {
        self.segment.block(self.number)
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.is_given_back && self.segment.is_mapped() {
            self.segment.free(self.number);
        }
    }
}

/// The reason why a block is not published, and the block, which is still writable.
#[derive(Debug)]
#[non_exhaustive]
pub struct PublishError {
    /// The reason.
    pub reason: InvalidHeader,
    /// The block.
    pub block: Block,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}
