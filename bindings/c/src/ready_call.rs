//! The call that tells a program that a block is there.

#![allow(unsafe_code, reason = "calls a function of the program")]

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, ThreadId};

use hostbuf_os::fork_guard::ForkGuard;

/// A function of the program that is called once.
pub type ReadyFunction = unsafe extern "C" fn(*mut c_void);

/// A function of the program that says that a block is there, with its argument. It is called once.
pub struct ReadyCall {
    state: Mutex<CallState>,
    guard: ForkGuard,
    ended: Condvar,
}

enum CallState {
    Armed(ReadyFunction, *mut c_void),
    Running(ThreadId),
    Over,
}

// SAFETY: the program lets another thread call its function with the argument.
unsafe impl Send for CallState {}

impl ReadyCall {
    pub fn new(function: ReadyFunction, argument: *mut c_void) -> ReadyCall {
        let state = Mutex::new(CallState::Armed(function, argument));
        ReadyCall { state, guard: ForkGuard::current(), ended: Condvar::new() }
    }

    /// Returns whether this process was forked from the one that made the call. It does not have
    /// the threads that may hold the lock or run the function.
    pub fn is_inherited(&self) -> bool {
        !self.guard.is_current()
    }

    /// Calls the function, unless it was called or cancelled.
    pub fn call(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CallState::Armed(function, argument) = *state else { return };
        *state = CallState::Running(thread::current().id());
        drop(state);
        // SAFETY: the program keeps both valid until the call has returned, or is cancelled.
        unsafe { function(argument) };
        if self.is_inherited() {
            // The function has forked.
            return;
        }
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = CallState::Over;
        self.ended.notify_all();
    }

    /// Prevents the call. Waits for its end if another thread is calling. A forked child calls
    /// nothing, and does not wait.
    pub fn cancel(&self) {
        if self.is_inherited() {
            return;
        }
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
