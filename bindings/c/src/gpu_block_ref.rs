//! Blocks on a GPU that a process reads.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use ::hostbuf_pool::{GpuBlockRef, PoolError, Token};
use hostbuf_cuda::CudaEvent;

use crate::block_ref::hostbuf_block_header;
use crate::gpu_stream::borrowed;
use crate::pointers::{input, output, struct_output};
use crate::pool::{hostbuf_pool, hostbuf_token};
use crate::pool_status::{acquire_error, cuda_error, pool_error, ready_error};
use crate::status::{CallResult, argument, call, hostbuf_status};

/// A reader's hold on a published block on a GPU. The producer does not reuse the block while it
/// exists.
pub struct hostbuf_gpu_block_ref {
    held: GpuBlockRef,
}

/// Returns the block of a handle.
fn held(block: Option<&hostbuf_gpu_block_ref>) -> CallResult<&GpuBlockRef> {
    let held = &input(block, "block")?.held;
    match held.context().is_inherited() {
        true => Err(pool_error(PoolError::Forked)),
        false => Ok(held),
    }
}

/// Acquires the block of a token that lies on a GPU, for reading. Its producer does not reuse the
/// block before `hostbuf_gpu_block_ref_release`. The first token of a producer finds the GPU by its
/// UUID and maps the memory of all blocks in the primary context of the GPU; no driver is loaded
/// before.
///
/// `HOSTBUF_GONE` and `HOSTBUF_QUOTA` are as for `hostbuf_pool_acquire`. `HOSTBUF_UNSUPPORTED`:
/// there is no driver, this process does not see the GPU, or the driver has refused the memory.
/// `HOSTBUF_INVALID`: the block lies on the host, and `hostbuf_pool_acquire` acquires it.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pool_acquire_gpu(
    pool: Option<&hostbuf_pool>,
    token: Option<&hostbuf_token>,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_block_ref>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let pool = &input(pool, "pool")?.pool;
        let token = Token::from_bytes(&input(token, "token")?.bytes);
        let token = token.map_err(|error| acquire_error(error.into()))?;
        let held = pool.acquire_gpu(&token).map_err(acquire_error)?;
        *to = Box::into_raw(Box::new(hostbuf_gpu_block_ref { held }));
        Ok(())
    })
}

/// Returns the GPU's address of the first byte of the content, a multiple of 4096, for this
/// process. Returns 0 if `block` is null, or in a forked child.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_ref_address(block: Option<&hostbuf_gpu_block_ref>) -> u64 {
    let block = block.filter(|block| !block.held.context().is_inherited());
    block.map_or(0, |block| block.held.address())
}

/// Returns the number of bytes of the content, or 0 if `block` is null.
// Safety: `block` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_ref_size(block: Option<&hostbuf_gpu_block_ref>) -> usize {
    block.map_or(0, |block| block.held.len())
}

/// Writes the description of the content to `header`.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_gpu_block_ref_header(
    block: Option<&hostbuf_gpu_block_ref>,
    header: *mut hostbuf_block_header,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(header, "header") }?;
        to.write(&input(block, "block")?.held.header().into());
        Ok(())
    })
}

/// Makes all later work on `stream` wait until the GPU has written the content. `stream` is a
/// `CUstream` or `cudaStream_t` of the block's GPU; null is the default stream. The call itself
/// does not wait.
///
/// `HOSTBUF_GONE`: the producer has ended before the content was complete, and the stream waits for
/// nothing. `HOSTBUF_UNSUPPORTED`: the driver has refused the stream or the producer's event.
// Safety: the pointers are null or valid, and the stream exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_gpu_block_ref_wait_ready(
    block: Option<&hostbuf_gpu_block_ref>,
    stream: *mut c_void,
) -> hostbuf_status {
    call(|| {
        let held = held(block)?;
        // SAFETY: by the contract of this function.
        let stream = unsafe { borrowed(held.context(), stream) }?;
        held.wait_ready(&stream).map_err(ready_error)
    })
}

/// Writes to `is_ready` whether the GPU has written the content. It does not wait. The errors are
/// those of `hostbuf_gpu_block_ref_wait_ready`.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_ref_is_ready(
    block: Option<&hostbuf_gpu_block_ref>,
    is_ready: Option<&mut MaybeUninit<bool>>,
) -> hostbuf_status {
    call(|| {
        let to = output(is_ready, "is_ready", false)?;
        *to = held(block)?.is_ready().map_err(ready_error)?;
        Ok(())
    })
}

/// Adds a hold on the same block, for another thread or another part of the program.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_ref_clone(
    block: Option<&hostbuf_gpu_block_ref>,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_block_ref>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let held = held(block)?.clone();
        *to = Box::into_raw(Box::new(hostbuf_gpu_block_ref { held }));
        Ok(())
    })
}

/// Releases a hold when the GPU has completed all work that `stream` has now, such as a kernel that
/// reads the content, and sets `*block` to null. It does not wait. The stream is as for
/// `hostbuf_gpu_block_ref_wait_ready`. After an error the block is still held.
// Safety: the pointers are null or valid, and the stream exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_gpu_block_ref_release_after(
    block: Option<&mut Option<Box<hostbuf_gpu_block_ref>>>,
    stream: *mut c_void,
) -> hostbuf_status {
    call(|| {
        let place = block.ok_or_else(|| argument("block is null"))?;
        let found = place.as_deref().ok_or_else(|| argument("*block is null: it is released"))?;
        // SAFETY: by the contract of this function.
        let stream = unsafe { borrowed(held(Some(found))?.context(), stream) }?;
        let event = CudaEvent::after(&stream).map_err(cuda_error)?;
        let Some(block) = place.take() else { return Ok(()) };
        block.held.release_after(event);
        Ok(())
    })
}

/// Releases a hold at once, and sets `*block` to null. A null block is ignored.
// Safety: `block` is null or points to null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_block_ref_release(block: Option<&mut Option<Box<hostbuf_gpu_block_ref>>>) {
    call(|| {
        drop(block.and_then(Option::take));
        Ok(())
    });
}
