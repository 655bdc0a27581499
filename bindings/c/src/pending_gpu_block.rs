//! Blocks on a GPU that a program waits for without blocking a thread.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use ::hostbuf_pool::GpuBlock;

use crate::block_wait::BlockWait;
use crate::gpu_block::hostbuf_gpu_block;
use crate::gpu_producer::hostbuf_gpu_producer;
use crate::pending_block::hostbuf_ready_function;
use crate::pointers::{input, output};
use crate::status::{argument, call, hostbuf_status};

/// A block on a GPU that a program waits for without blocking a thread.
pub struct hostbuf_pending_gpu_block {
    wait: BlockWait<GpuBlock>,
}

/// Takes a free block without waiting for it, as `hostbuf_producer_take_async`:
/// `hostbuf_pending_gpu_block_get` returns the block.
// Safety: as for hostbuf_producer_take_async.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_producer_take_async(
    producer: Option<&hostbuf_gpu_producer>,
    ready: hostbuf_ready_function,
    argument: *mut c_void,
    to: Option<&mut MaybeUninit<*mut hostbuf_pending_gpu_block>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let producer = input(producer, "producer")?.producer.clone();
        let function = ready.ok_or_else(|| self::argument("ready is null"))?;
        let wait = BlockWait::new(async move { producer.take_async().await }, function, argument);
        // The function may need it at once.
        *to = Box::into_raw(Box::new(hostbuf_pending_gpu_block { wait: wait.clone() }));
        wait.start();
        Ok(())
    })
}

/// Sets `to` to the block, or returns `HOSTBUF_NOTHING` if it is not there yet, or `HOSTBUF_CLOSED`
/// if its producer was closed before. A second call after the block was returned is invalid.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pending_gpu_block_get(
    pending: Option<&hostbuf_pending_gpu_block>,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_block>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let block = input(pending, "pending")?.wait.get()?;
        *to = Box::into_raw(Box::new(hostbuf_gpu_block { block }));
        Ok(())
    })
}

/// Ends a pending block as `hostbuf_pending_block_close`.
// Safety: `pending` is null or a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pending_gpu_block_close(pending: Option<Box<hostbuf_pending_gpu_block>>) {
    call(|| {
        if let Some(pending) = &pending {
            pending.wait.cancel();
        }
        drop(pending);
        Ok(())
    });
}
