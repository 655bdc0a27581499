//! Blocks on a GPU that a producer writes.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use ::hostbuf_pool::{GpuBlock, GpuPublishError, GpuPublishFailure, PoolError};
use hostbuf_cuda::{BorrowedStream, CudaContext};

use crate::block::{block_header, hostbuf_content};
use crate::gpu_stream::borrowed;
use crate::pointers::output;
use crate::pool::hostbuf_token;
use crate::pool_status::{cuda_error, pool_error};
use crate::status::{CallResult, argument, call, hostbuf_status};

/// A block on a GPU that its producer writes. No reader has it before it is published.
pub struct hostbuf_gpu_block {
    pub(crate) block: GpuBlock,
}

/// Returns the GPU's address of the block's first byte, a multiple of 4096, for this process.
/// Returns 0 if the block is null, or in a forked child.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_address(block: Option<&hostbuf_gpu_block>) -> u64 {
    let block = block.filter(|block| !block.block.context().is_inherited());
    block.map_or(0, |block| block.block.address())
}

/// Returns the number of bytes of the block, or 0 if it is null.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_size(block: Option<&hostbuf_gpu_block>) -> usize {
    block.map_or(0, |block| block.block.len())
}

/// Publishes a block, after the work of a stream if there is one.
///
/// # Safety
/// `content` is null, or valid with valid arrays.
unsafe fn publish(
    block: Option<&mut Option<Box<hostbuf_gpu_block>>>,
    content: *const hostbuf_content,
    stream: impl FnOnce(&CudaContext) -> CallResult<Option<BorrowedStream>>,
    token: Option<&mut MaybeUninit<hostbuf_token>>,
) -> CallResult<()> {
    let token = output(token, "token", hostbuf_token { bytes: [0; 48] })?;
    let place = block.ok_or_else(|| argument("block is null"))?;
    let held = place.as_ref().ok_or_else(|| argument("*block is null: it is published or freed"))?;
    if held.block.context().is_inherited() {
        return Err(pool_error(PoolError::Forked));
    }
    // SAFETY: by the contract of this function.
    let header = unsafe { block_header(content, held.block.len() as u64) }?;
    let stream = stream(held.block.context())?;
    let Some(held) = place.take() else { return Ok(()) };
    match held.block.publish_with(header, stream.as_ref()) {
        Ok(made) => token.bytes = made.to_bytes(),
        Err(GpuPublishError { reason, block, .. }) => {
            *place = Some(Box::new(hostbuf_gpu_block { block }));
            return Err(match reason {
                GpuPublishFailure::Cuda(error) => cuda_error(error),
                reason => argument(format!("invalid content: {reason}")),
            });
        }
    }
    Ok(())
}

/// Publishes a block as `hostbuf_block_publish`. All work that writes it has ended.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_gpu_block_publish(
    block: Option<&mut Option<Box<hostbuf_gpu_block>>>,
    content: *const hostbuf_content,
    token: Option<&mut MaybeUninit<hostbuf_token>>,
) -> hostbuf_status {
    // SAFETY: by the contract of this function.
    call(|| unsafe { publish(block, content, |_| Ok(None), token) })
}

/// Publishes a block that `stream` writes, a `CUstream` or `cudaStream_t` of the block's GPU; null
/// is the default stream. It does not wait: readers get the block at once, and their streams wait
/// for the work that `stream` has now (`hostbuf_gpu_block_ref_wait_ready`). The rest is as for
/// `hostbuf_block_publish`.
///
/// `HOSTBUF_UNSUPPORTED`: the driver has refused the stream. The block is still the producer's.
// Safety: the pointers are null or valid, and the stream exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_gpu_block_publish_after(
    block: Option<&mut Option<Box<hostbuf_gpu_block>>>,
    content: *const hostbuf_content,
    stream: *mut c_void,
    token: Option<&mut MaybeUninit<hostbuf_token>>,
) -> hostbuf_status {
    // SAFETY: by the contract of this function; the stream is dropped before the return.
    call(|| unsafe { publish(block, content, |context| borrowed(context, stream).map(Some), token) })
}

/// Frees a block that is not published, and sets `*block` to null. All work that writes it has
/// ended. A null block is ignored.
// Safety: `block` is null or points to null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_free(block: Option<&mut Option<Box<hostbuf_gpu_block>>>) {
    call(|| {
        drop(block.and_then(Option::take));
        Ok(())
    });
}
