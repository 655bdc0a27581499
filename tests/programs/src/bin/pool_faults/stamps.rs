//! Stamps in every page of a frame.

use hostbuf_pool::{ArrayLayout, Block, BlockRef, ElementType, Token};

use crate::broken_promise::BrokenPromise;

const PAGE: usize = 4096;

/// Writes `stamp` at the beginning and at the end of each page, and publishes the block.
pub(crate) fn publish(mut block: Block, stamp: u64) -> Token {
    for page in block.as_mut_slice().chunks_exact_mut(PAGE) {
        page[..8].copy_from_slice(&stamp.to_ne_bytes());
        page[PAGE - 8..].copy_from_slice(&stamp.to_ne_bytes());
    }
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[block.len() as u64]).expect("a layout");
    block.publish(layout).expect("the array is as long as the block")
}

/// Checks that all stamps of a frame are equal, and returns the stamp.
pub(crate) fn check(block: &BlockRef) -> Result<u64, BrokenPromise> {
    let mut stamps = block.as_slice().chunks_exact(PAGE).flat_map(|page| {
        [&page[..8], &page[PAGE - 8..]].map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")))
    });
    let first = stamps.next().ok_or("an empty frame")?;
    match stamps.find(|stamp| *stamp != first) {
        Some(other) => Err(format!("a torn frame: stamps {first} and {other}")),
        None => Ok(first),
    }
}
