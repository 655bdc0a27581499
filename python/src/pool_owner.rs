//! The owners of a block's memory: views keep them alive.

use std::sync::Arc;

use hostbuf_pool::{ArrayLayout, Block, BlockRef, ElementType, Pool};

/// A block that this process writes, with its connection. It is freed with its last view, unless it
/// is published.
pub struct WritableBlock {
    // In the order in which they are dropped: a broker ends the holds of a client that has
    // disconnected.
    pub block: Block,
    pub address: usize,
    pub pool: Pool,
}

impl WritableBlock {
    pub fn new(mut block: Block, pool: Pool) -> WritableBlock {
        let address = block.as_mut_ptr() as usize;
        WritableBlock { block, address, pool }
    }
}

/// A hold on a published block, with its connection.
#[derive(Clone)]
pub struct AcquiredBlock {
    // In the order in which they are dropped.
    pub held: BlockRef,
    pub _pool: Pool,
}

/// The owner of the memory of a view.
pub enum ViewOwner {
    Writable(Arc<WritableBlock>),
    Held(Box<AcquiredBlock>),
    /// A copy, in words, for its alignment.
    Copy(Box<[u64]>),
}

impl ViewOwner {
    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        match self {
            ViewOwner::Writable(block) => block.address,
            ViewOwner::Held(block) => block.held.as_ptr() as usize,
            ViewOwner::Copy(words) => words.as_ptr() as usize,
        }
    }

    /// Returns whether the memory must not be written.
    pub fn is_read_only(&self) -> bool {
        matches!(self, ViewOwner::Held(_))
    }

    /// Returns whether this process has the memory: a forked child has not.
    pub fn is_mapped(&self) -> bool {
        match self {
            ViewOwner::Writable(block) => block.block.is_mapped(),
            ViewOwner::Held(block) => block.held.is_mapped(),
            ViewOwner::Copy(_) => true,
        }
    }
}

/// Returns the layout for other libraries, which have no opaque bytes.
pub fn exported(layout: &ArrayLayout) -> ArrayLayout {
    match layout.element() {
        ElementType::Opaque => ArrayLayout::new(ElementType::UInt8, layout.shape(), layout.strides())
            .expect("the elements have one size"),
        _ => *layout,
    }
}
