//! The call that tells a program that a block is there.

#![allow(unsafe_code, reason = "calls a function of the program")]

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, ThreadId};

/// A function of the program that says that a block is there, with its argument. It is called once.
pub struct ReadyCall {
    state: Mutex<CallState>,
    ended: Condvar,
}

enum CallState {
    Armed(unsafe extern "C" fn(*mut c_void), *mut c_void),
    Running(ThreadId),
    Over,
}

// SAFETY: the program lets another thread call its function with the argument.
unsafe impl Send for CallState {}

impl ReadyCall {
    pub fn new(function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) -> ReadyCall {
        ReadyCall { state: Mutex::new(CallState::Armed(function, argument)), ended: Condvar::new() }
    }

    /// Calls the function, unless it was called or cancelled.
    pub fn call(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CallState::Armed(function, argument) = *state else { return };
        *state = CallState::Running(thread::current().id());
        drop(state);
        // SAFETY: the program keeps both valid until the call has returned, or is cancelled.
        unsafe { function(argument) };
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = CallState::Over;
        self.ended.notify_all();
    }

    /// Prevents the call. Waits for its end if another thread is calling.
    pub fn cancel(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let CallState::Armed(..) = *state {
            *state = CallState::Over;
        }
        let own = thread::current().id();
        let is_elsewhere = |state: &mut CallState| matches!(*state, CallState::Running(id) if id != own);
        drop(self.ended.wait_while(state, is_elsewhere));
    }
}

impl Wake for ReadyCall {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}
