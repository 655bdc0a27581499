//! Waits of a program for a block that block no thread.

use std::ffi::c_void;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ::hostbuf_pool::{PoolError, TakeError};
use hostbuf_os::poison::IgnorePoison;

use crate::pool_status::{pool_error, take_error};
use crate::ready_call::{ReadyCall, ReadyFunction};
use crate::status::{CallError, CallResult, argument};

/// A request for a block, and the function of the program that is called once it has a result.
pub struct BlockWait<B> {
    // The function may close the handle while the call that made it is still running.
    state: Arc<Mutex<WaitState<B>>>,
    ready: Arc<ReadyCall>,
}

/// The states of the wait.
enum WaitState<B> {
    Waiting(Pin<Box<dyn Future<Output = Result<B, TakeError>> + Send>>),
    Finished(Result<B, TakeError>),
    /// The program has the result.
    Over,
}

impl<B> WaitState<B> {
    /// Looks whether there is a result.
    fn advance(&mut self, ready: &Arc<ReadyCall>) {
        let WaitState::Waiting(future) = self else { return };
        let waker = Waker::from(ready.clone());
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            *self = WaitState::Finished(result);
        }
    }
}

impl<B> BlockWait<B> {
    pub fn new(
        future: impl Future<Output = Result<B, TakeError>> + Send + 'static,
        function: ReadyFunction,
        argument: *mut c_void,
    ) -> BlockWait<B> {
        let state = Arc::new(Mutex::new(WaitState::Waiting(Box::pin(future))));
        BlockWait { state, ready: Arc::new(ReadyCall::new(function, argument)) }
    }

    /// Begins the wait. Calls the function if there is a result at once.
    pub fn start(&self) {
        let mut state = self.state.lock().ignore_poison();
        state.advance(&self.ready);
        if matches!(*state, WaitState::Waiting(_)) {
            return;
        }
        drop(state);
        self.ready.call();
    }

    /// Returns the block, once it is there.
    pub fn get(&self) -> CallResult<B> {
        if self.ready.is_inherited() {
            return Err(pool_error(PoolError::Forked));
        }
        let mut state = self.state.lock().ignore_poison();
        state.advance(&self.ready);
        match std::mem::replace(&mut *state, WaitState::Over) {
            WaitState::Finished(result) => result.map_err(take_error),
            WaitState::Over => Err(argument("the pending block was returned before")),
            waiting @ WaitState::Waiting(_) => {
                *state = waiting;
                Err(CallError::Nothing("no block is free yet".into()))
            }
        }
    }

    /// Prevents the call of the function. Waits for its end if another thread is calling.
    pub fn cancel(&self) {
        self.ready.cancel();
    }
}

impl<B> Clone for BlockWait<B> {
    fn clone(&self) -> BlockWait<B> {
        BlockWait { state: self.state.clone(), ready: self.ready.clone() }
    }
}
