//! Blocks that a program waits for without blocking a thread.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use ::hostbuf_pool::{Block, Pool};

use crate::block::hostbuf_block;
use crate::block_wait::BlockWait;
use crate::pointers::{input, output};
use crate::producer::hostbuf_producer;
use crate::status::{argument, call, hostbuf_status};

/// A function of the program that is called once a request for a block has a result. It must return
/// soon: other tasks wait for the thread that calls it. It may get the block, and close the pending
/// block.
pub type hostbuf_ready_function = Option<unsafe extern "C" fn(argument: *mut c_void)>;

/// A block that a program waits for without blocking a thread.
pub struct hostbuf_pending_block {
    wait: BlockWait<Block>,
    pool: Pool,
}

/// Takes a free block without waiting for it. Once `hostbuf_pending_block_get` returns something
/// other than `HOSTBUF_NOTHING`, `ready(argument)` is called once: by a thread of hostbuf, by
/// `hostbuf_producer_close`, or before this function returns. Requests get their blocks in the
/// order in which they were made; threads in `hostbuf_producer_take` and
/// `hostbuf_producer_try_take` are not in that queue.
// Safety: the pointers are null or valid; any thread may call the function with the argument until
// it has returned, or `to` is closed.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_producer_take_async(
    producer: Option<&hostbuf_producer>,
    ready: hostbuf_ready_function,
    argument: *mut c_void,
    to: Option<&mut MaybeUninit<*mut hostbuf_pending_block>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let hostbuf_producer { producer, pool } = input(producer, "producer")?;
        let function = ready.ok_or_else(|| self::argument("ready is null"))?;
        let producer = producer.clone();
        let wait = BlockWait::new(async move { producer.take_async().await }, function, argument);
        let pending = hostbuf_pending_block { wait: wait.clone(), pool: pool.clone() };
        // The function may need it at once.
        *to = Box::into_raw(Box::new(pending));
        wait.start();
        Ok(())
    })
}

/// Sets `to` to the block, or returns `HOSTBUF_NOTHING` if it is not there yet, or `HOSTBUF_CLOSED`
/// if its producer was closed before. A second call after the block was returned is invalid.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pending_block_get(
    pending: Option<&hostbuf_pending_block>,
    to: Option<&mut MaybeUninit<*mut hostbuf_block>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let pending = input(pending, "pending")?;
        let block = pending.wait.get()?;
        *to = Box::into_raw(Box::new(hostbuf_block::new(block, &pending.pool)));
        Ok(())
    })
}

/// Ends a pending block. The function is not called afterwards; a call in another thread has
/// returned. A block that nobody has got is free. A null pointer is ignored.
// Safety: `pending` is null or a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pending_block_close(pending: Option<Box<hostbuf_pending_block>>) {
    call(|| {
        if let Some(pending) = &pending {
            pending.wait.cancel();
        }
        drop(pending);
        Ok(())
    });
}
