//! Blocks that a program waits for without blocking a thread.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use ::hostbuf_pool::{Block, Pool, TakeError};

use crate::block::hostbuf_block;
use crate::pointers::{input, output};
use crate::pool_status::take_error;
use crate::producer::hostbuf_producer;
use crate::ready_call::ReadyCall;
use crate::status::{CallError, argument, call, hostbuf_status};

/// A function of the program that is called once a block is there. It must return soon: other tasks
/// wait for the thread that calls it. It may get the block, and close the pending block.
pub type hostbuf_ready_function = Option<unsafe extern "C" fn(argument: *mut c_void)>;

/// A block that a program waits for without blocking a thread.
pub struct hostbuf_pending_block {
    // The function may close the handle while the call that made it is still running.
    wait: Arc<Mutex<BlockWait>>,
    ready: Arc<ReadyCall>,
    pool: Pool,
}

/// The states of the wait.
enum BlockWait {
    Waiting(Pin<Box<dyn Future<Output = Result<Block, TakeError>> + Send>>),
    Finished(Result<Block, TakeError>),
    /// The program has the block.
    Over,
}

impl BlockWait {
    /// Looks whether the block is there.
    fn advance(&mut self, ready: &Arc<ReadyCall>) {
        let BlockWait::Waiting(future) = self else { return };
        let waker = Waker::from(ready.clone());
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            *self = BlockWait::Finished(result);
        }
    }
}

/// Takes a free block without waiting for it. Once `hostbuf_pending_block_get` returns something
/// other than `HOSTBUF_NOTHING`, `ready(argument)` is called once, by a thread of hostbuf or before
/// this function returns. Requests get their blocks in the order in which they were made.
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
        let future = Box::pin(async move { producer.take_async().await });
        let wait = Arc::new(Mutex::new(BlockWait::Waiting(future)));
        let ready = Arc::new(ReadyCall::new(function, argument));
        let pending = hostbuf_pending_block { wait: wait.clone(), ready: ready.clone(), pool: pool.clone() };
        // The function may need it at once.
        *to = Box::into_raw(Box::new(pending));
        let mut state = wait.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(&ready);
        if matches!(*state, BlockWait::Waiting(_)) {
            return Ok(());
        }
        drop(state);
        ready.call();
        Ok(())
    })
}

/// Sets `to` to the block, or returns `HOSTBUF_NOTHING` if it is not there yet. A second call after
/// the block was returned is invalid.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pending_block_get(
    pending: Option<&hostbuf_pending_block>,
    to: Option<&mut MaybeUninit<*mut hostbuf_block>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let pending = input(pending, "pending")?;
        let mut state = pending.wait.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(&pending.ready);
        match std::mem::replace(&mut *state, BlockWait::Over) {
            BlockWait::Finished(result) => {
                let block = result.map_err(take_error)?;
                *to = Box::into_raw(Box::new(hostbuf_block::new(block, &pending.pool)));
                Ok(())
            }
            BlockWait::Over => Err(argument("the pending block was returned before")),
            waiting @ BlockWait::Waiting(_) => {
                *state = waiting;
                Err(CallError::Nothing("no block is free yet".into()))
            }
        }
    })
}

/// Ends a pending block. The function is not called afterwards; a call in another thread has
/// returned. A block that nobody has got is free. A null pointer is ignored.
// Safety: `pending` is null or a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pending_block_close(pending: Option<Box<hostbuf_pending_block>>) {
    call(|| {
        if let Some(pending) = &pending {
            pending.ready.cancel();
        }
        drop(pending);
        Ok(())
    });
}
