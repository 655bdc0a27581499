//! Blocks that a process reads.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use ::hostbuf_pool::{ArrayLayout, BlockHeader, BlockRef, Pool, PoolError};

use crate::element_type::number;
use crate::pointers::{input, output, struct_output};
use crate::pool_status::pool_error;
use crate::status::{call, hostbuf_status};

/// A reader's hold on a published block. The producer does not reuse the block while it exists.
pub struct hostbuf_block_ref {
    // In the order in which they are dropped.
    pub(crate) held: BlockRef,
    pub(crate) pool: Pool,
}

impl hostbuf_block_ref {
    pub(crate) fn new(held: BlockRef, pool: &Pool) -> hostbuf_block_ref {
        hostbuf_block_ref { held, pool: pool.clone() }
    }
}

/// The description of the content of a published block. All numbers were checked: the array lies
/// within the content.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_block_header {
    /// The size of this structure: initialize it with `HOSTBUF_BLOCK_HEADER_INIT`.
    pub struct_size: usize,
    /// One of `hostbuf_element_type`.
    pub element: u32,
    /// The number of dimensions.
    pub ndim: u32,
    /// The extents of the dimensions in elements; 0 behind the last dimension.
    pub shape: [u64; 8],
    /// The strides of the dimensions in bytes; 0 behind the last dimension.
    pub strides: [i64; 8],
    /// The length of the content in bytes.
    pub length: u64,
    /// The number of times that the block was taken before.
    pub generation: u64,
    /// The number of blocks that the producer published before this one. A gap is the number of
    /// blocks that the reader has missed.
    pub sequence: u64,
    /// The time of publication in nanoseconds, by `CLOCK_MONOTONIC`.
    pub published_ns: u64,
    /// The time of capture in nanoseconds, or 0 if there is none.
    pub captured_ns: u64,
    /// The number that the producer gave the frame.
    pub frame: u64,
    /// The bytes that the producer added.
    pub user_data: [u8; 48],
}

sized_struct!(hostbuf_block_header, "HOSTBUF_BLOCK_HEADER_INIT", last: user_data: [u8; 48]);

const _: () = assert!(ArrayLayout::MAX_DIMENSIONS == 8 && BlockHeader::USER_DATA_SIZE == 48);

impl From<&BlockHeader> for hostbuf_block_header {
    fn from(header: &BlockHeader) -> hostbuf_block_header {
        let layout = &header.layout;
        let dimensions = layout.shape().len();
        let (mut shape, mut strides) = ([0; 8], [0; 8]);
        shape[..dimensions].copy_from_slice(layout.shape());
        strides[..dimensions].copy_from_slice(layout.strides());
        hostbuf_block_header {
            struct_size: size_of::<hostbuf_block_header>(),
            element: number(layout.element()),
            ndim: dimensions as u32,
            shape,
            strides,
            length: header.length,
            generation: header.generation,
            sequence: header.sequence,
            published_ns: header.published_ns,
            captured_ns: header.captured_ns.unwrap_or(0),
            frame: header.frame,
            user_data: header.user_data,
        }
    }
}

/// Returns the address of the first byte of the content, a multiple of 4096. Returns null if
/// `block` is null, or in a forked child.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_ref_data(block: Option<&hostbuf_block_ref>) -> *const c_void {
    block.filter(|block| block.held.is_mapped()).map_or(null(), |block| block.held.as_ptr().cast())
}

/// Returns the number of bytes of the content, or 0 if `block` is null.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_ref_size(block: Option<&hostbuf_block_ref>) -> usize {
    block.map_or(0, |block| block.held.len())
}

/// Writes the description of the content to `header`.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_block_ref_header(
    block: Option<&hostbuf_block_ref>,
    header: *mut hostbuf_block_header,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(header, "header") }?;
        to.write(&input(block, "block")?.held.header().into());
        Ok(())
    })
}

/// Adds a hold on the same block, for another thread or another part of the program.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_ref_clone(
    block: Option<&hostbuf_block_ref>,
    to: Option<&mut MaybeUninit<*mut hostbuf_block_ref>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let block = input(block, "block")?;
        if !block.held.is_mapped() {
            return Err(pool_error(PoolError::Forked));
        }
        *to = Box::into_raw(Box::new(hostbuf_block_ref::new(block.held.clone(), &block.pool)));
        Ok(())
    })
}

/// Releases a hold, and sets `*block` to null. A null block is ignored.
// Safety: `block` is null or points to null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_ref_release(block: Option<&mut Option<Box<hostbuf_block_ref>>>) {
    call(|| {
        drop(block.and_then(Option::take));
        Ok(())
    });
}
