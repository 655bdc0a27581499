//! The options of a producer.

use crate::error::{InvalidGeometry, PoolError};
use crate::segment::{MAX_BLOCKS, SegmentGeometry};
use crate::wire::SegmentTerms;

/// The options of a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProducerOptions {
    /// The length of a block in bytes; it is rounded up to whole pages of 4 KiB.
    pub block_bytes: u64,
    /// The number of blocks.
    pub blocks: u32,
    /// The number of processes that may read at the same time.
    pub readers: u32,
    /// The number of published blocks that late readers may still acquire; the others are reused.
    /// `None` means half of the blocks.
    pub retain: Option<u32>,
    /// The number of blocks that one reader may hold. `None` means half of the blocks.
    pub quota: Option<u32>,
    /// The names of the readers that the producer waits for: no block is reused before all of them
    /// have read it.
    pub wait_for: Vec<String>,
    /// The name of the stream, for people.
    pub stream: String,
}

impl ProducerOptions {
    /// The default of [`readers`](ProducerOptions::readers).
    pub const READERS: u32 = 8;
    /// The largest number of blocks.
    pub const MAX_BLOCKS: u32 = MAX_BLOCKS;

    /// Makes the default options for `blocks` blocks of `block_bytes` bytes.
    #[must_use]
    pub fn new(block_bytes: u64, blocks: u32) -> ProducerOptions {
        ProducerOptions {
            block_bytes,
            blocks,
            readers: ProducerOptions::READERS,
            retain: None,
            quota: None,
            wait_for: Vec::new(),
            stream: String::new(),
        }
    }

    /// Sets the number of processes that may read at the same time.
    #[must_use]
    pub fn readers(mut self, readers: u32) -> ProducerOptions {
        self.readers = readers;
        self
    }

    /// Sets the number of published blocks that late readers may still acquire.
    #[must_use]
    pub fn retain(mut self, last: u32) -> ProducerOptions {
        self.retain = Some(last);
        self
    }

    /// Sets the number of blocks that one reader may hold.
    #[must_use]
    pub fn quota(mut self, blocks: u32) -> ProducerOptions {
        self.quota = Some(blocks);
        self
    }

    /// Adds a reader that the producer waits for. Before its first block is read, the producer
    /// waits for its attachment; a reader that ends is not waited for until it attaches again.
    #[must_use]
    pub fn wait_for(mut self, reader: impl Into<String>) -> ProducerOptions {
        self.wait_for.push(reader.into());
        self
    }

    /// Sets the name of the stream.
    #[must_use]
    pub fn stream(mut self, name: impl Into<String>) -> ProducerOptions {
        self.stream = name.into();
        self
    }

    /// Returns the sizes and the quota, and the number of retained blocks.
    pub(super) fn terms(&self) -> Result<(SegmentTerms, u32), PoolError> {
        let geometry = SegmentGeometry::new(self.block_bytes, self.blocks, self.readers)?;
        let half = (self.blocks / 2).max(1);
        let quota = self.quota.unwrap_or(half);
        if !(1..=self.blocks).contains(&quota) {
            return Err(InvalidGeometry::Quota { requested: quota, most: self.blocks }.into());
        }
        // One block is always left to be written.
        let most = self.blocks - 1;
        let retain = self.retain.unwrap_or(half);
        if !(1..=most).contains(&retain) {
            return Err(InvalidGeometry::Retain { requested: retain, most }.into());
        }
        Ok((SegmentTerms { geometry, quota, gpu: None }, retain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_leave_a_block_to_write() {
        for (blocks, quota, retain) in [(2, 1, 1), (3, 1, 1), (8, 4, 4)] {
            let (terms, retained) = ProducerOptions::new(100, blocks).terms().unwrap();
            assert_eq!((terms.quota, retained), (quota, retain));
        }
        assert!(ProducerOptions::new(100, 1).terms().is_err());
        assert!(ProducerOptions::new(100, 4).retain(0).terms().is_err());
        assert!(ProducerOptions::new(100, 4).retain(4).terms().is_err());
        assert!(ProducerOptions::new(100, 4).quota(0).terms().is_err());
        assert!(ProducerOptions::new(100, 4).quota(5).terms().is_err());
    }
}
