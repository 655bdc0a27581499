//! Blocks that a producer writes.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::slice;

use ::hostbuf_pool::{ArrayLayout, Block, BlockHeader, ElementType, Pool, PoolError, PublishError};
use library::sized_struct::SizedInput;

use crate::element_type::element_type;
use crate::pointers::{output, read};
use crate::pool::hostbuf_token;
use crate::pool_status::pool_error;
use crate::status::{CallResult, argument, call, hostbuf_status};

/// A block that its producer writes. No reader has it before it is published.
pub struct hostbuf_block {
    // In the order in which they are dropped.
    block: Block,
    address: *mut u8,
    _pool: Pool,
}

impl hostbuf_block {
    pub(crate) fn new(mut block: Block, pool: &Pool) -> hostbuf_block {
        hostbuf_block { address: block.as_mut_ptr(), block, _pool: pool.clone() }
    }
}

/// The description of the content that a producer publishes. Without an element type the content
/// is bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_content {
    /// The size of this structure: initialize it with `HOSTBUF_CONTENT_INIT`.
    pub struct_size: usize,
    /// One of `hostbuf_element_type`.
    pub element: u32,
    /// The number of dimensions, at most 8.
    pub ndim: u32,
    /// The extents of the dimensions in elements; may be null if there is no dimension.
    pub shape: *const u64,
    /// The strides of the dimensions in bytes. Null means an array in C order without gaps.
    pub strides: *const i64,
    /// The length of the content in bytes. 0 means the end of the array, or of the block if there
    /// is no element type. The content may continue behind the array.
    pub length: u64,
    /// The number that the producer gives the frame.
    pub frame: u64,
    /// The time of capture in nanoseconds, by a clock that producer and consumers agree on. 0 means
    /// none.
    pub captured_ns: u64,
    /// Bytes that are passed to the readers, or null.
    pub user_data: *const c_void,
    /// The number of these bytes, at most 48.
    pub user_data_size: usize,
}

sized_struct!(hostbuf_content, "HOSTBUF_CONTENT_INIT", last: user_data_size: usize);

// SAFETY: numbers and raw pointers.
unsafe impl SizedInput for hostbuf_content {
    const DEFAULT: hostbuf_content = hostbuf_content {
        struct_size: size_of::<hostbuf_content>(),
        element: 0,
        ndim: 0,
        shape: null(),
        strides: null(),
        length: 0,
        frame: 0,
        captured_ns: 0,
        user_data: null(),
        user_data_size: 0,
    };
}

/// Returns an array of the caller.
///
/// # Safety
/// `at` is null or points to `count` elements.
unsafe fn array<'a, T>(at: *const T, count: usize, name: &str) -> CallResult<&'a [T]> {
    match (count, at.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(argument(format!("content.{name} is null, but has {count} elements"))),
        // SAFETY: by the contract of this function.
        _ => Ok(unsafe { slice::from_raw_parts(at, count) }),
    }
}

/// Returns the header of the caller's content in a block of `block_bytes` bytes.
///
/// # Safety
/// `content` is null, or valid with valid arrays.
pub(crate) unsafe fn block_header(
    content: *const hostbuf_content,
    block_bytes: u64,
) -> CallResult<BlockHeader> {
    let given = match content.is_null() {
        true => hostbuf_content::DEFAULT,
        // SAFETY: by the contract of this function.
        false => unsafe { read(content, "content") }?,
    };
    let invalid = |error| argument(format!("invalid content: {error}"));
    let layout = if given.element == 0 {
        if given.ndim > 0 {
            return Err(argument(format!(
                "content.ndim is {}, and there is no element type: set content.element",
                given.ndim
            )));
        }
        let length = if given.length == 0 { block_bytes } else { given.length };
        ArrayLayout::contiguous(ElementType::Opaque, &[length])
    } else {
        let element = element_type(given.element)?;
        let dimensions = given.ndim as usize;
        if dimensions > ArrayLayout::MAX_DIMENSIONS {
            let most = ArrayLayout::MAX_DIMENSIONS;
            return Err(argument(format!("invalid content.ndim {dimensions}: expected 0 to {most}")));
        }
        // SAFETY: by the contract of this function.
        let shape = unsafe { array(given.shape, dimensions, "shape") }?;
        if given.strides.is_null() {
            ArrayLayout::contiguous(element, shape)
        } else {
            // SAFETY: as above.
            let strides = unsafe { array(given.strides, dimensions, "strides") }?;
            ArrayLayout::new(element, shape, strides)
        }
    };
    let mut header = BlockHeader::new(layout.map_err(invalid)?);
    if given.length > 0 {
        header.length = given.length;
    }
    header.frame = given.frame;
    header.captured_ns = (given.captured_ns > 0).then_some(given.captured_ns);
    let most = BlockHeader::USER_DATA_SIZE;
    if given.user_data_size > most {
        let size = given.user_data_size;
        return Err(argument(format!("invalid content.user_data_size {size}: expected at most {most}")));
    }
    // SAFETY: by the contract of this function.
    let user_data = unsafe { array(given.user_data.cast::<u8>(), given.user_data_size, "user_data") }?;
    header.user_data[..user_data.len()].copy_from_slice(user_data);
    Ok(header)
}

/// Returns the address of the block's first byte, a multiple of 4096. The bytes are those of an
/// earlier content, or zeros. Returns null if the block is null, or in a forked child.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_data(block: Option<&hostbuf_block>) -> *mut c_void {
    block.filter(|block| block.block.is_mapped()).map_or(null_mut(), |block| block.address.cast())
}

/// Returns the number of bytes of the block, or 0 if it is null.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_size(block: Option<&hostbuf_block>) -> usize {
    block.map_or(0, |block| block.block.len())
}

/// Publishes a block, writes its token to `token`, and sets `*block` to null: the producer must not
/// write to it any more. Null `content` is the whole block as bytes. After an error the block is
/// still the producer's.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_block_publish(
    block: Option<&mut Option<Box<hostbuf_block>>>,
    content: *const hostbuf_content,
    token: Option<&mut MaybeUninit<hostbuf_token>>,
) -> hostbuf_status {
    call(|| {
        let token = output(token, "token", hostbuf_token { bytes: [0; 48] })?;
        let place = block.ok_or_else(|| argument("block is null"))?;
        let held = place.as_ref().ok_or_else(|| argument("*block is null: it is published or freed"))?;
        if !held.block.is_mapped() {
            return Err(pool_error(PoolError::Forked));
        }
        // SAFETY: by the contract of this function.
        let header = unsafe { block_header(content, held.block.len() as u64) }?;
        let Some(held) = place.take() else { return Ok(()) };
        let hostbuf_block { block, address, _pool } = *held;
        match block.publish_with(header) {
            Ok(made) => token.bytes = made.to_bytes(),
            Err(PublishError { reason, block, .. }) => {
                *place = Some(Box::new(hostbuf_block { block, address, _pool }));
                return Err(argument(format!("invalid content: {reason}")));
            }
        }
        Ok(())
    })
}

/// Frees a block that is not published, and sets `*block` to null. A null block is ignored.
// Safety: `block` is null or points to null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_free(block: Option<&mut Option<Box<hostbuf_block>>>) {
    call(|| {
        drop(block.and_then(Option::take));
        Ok(())
    });
}
