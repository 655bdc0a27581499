//! Threads of the library's own, started by `pthread_create(3)`.
//!
//! The standard library takes a lock of its own when a thread begins and when it ends. A child that is forked while another thread of its
//! parent holds that lock has it locked for ever, and a thread that the child starts then never runs. The C library's locks
//! are good in a child, so caches work there.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a thread's stack, as the standard library has it.
const STACK: usize = 2 << 20;

/// A running thread, to be joined.
pub struct Thread {
    handle: libc::pthread_t,
    finished: Arc<AtomicBool>,
}

type Body = Box<dyn FnOnce() + Send>;

/// The argument of a new thread.
struct Start {
    body: Body,
    finished: Arc<AtomicBool>,
}

extern "C" fn begin(start: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: made by `spawn` with `Box::into_raw`, for this thread alone.
    let Start { body, finished } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // A panic has been reported when it comes here, and must not cross the C library.
    let _ = catch_unwind(AssertUnwindSafe(body));
    finished.store(true, Ordering::Release);
    std::ptr::null_mut()
}

/// Starts a thread that runs `body`. `name` has at most 15 bytes; the kernel takes no more.
///
/// # Errors
/// As `pthread_create(3)`: `EAGAIN` when there are too many threads, or no memory.
pub fn spawn(name: &CStr, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let finished = Arc::new(AtomicBool::new(false));
    let start = Box::into_raw(Box::new(Start { body: Box::new(body), finished: finished.clone() }));
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut handle = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialised first and destroyed last; the thread gets what `begin` expects.
    let result = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        let result = libc::pthread_create(handle.as_mut_ptr(), attributes.as_ptr(), begin, start.cast());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        result
    };
    if result != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(result));
    }
    // SAFETY: it was created, and is joined once at most.
    let handle = unsafe { handle.assume_init() };
    // SAFETY: a thread that has not been joined, and a string.
    unsafe { libc::pthread_setname_np(handle, name.as_ptr()) };
    Ok(Thread { handle, finished })
}

impl Thread {
    /// Returns whether the thread has done all that it had to.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Waits until the thread has ended.
    pub fn join(self) {
        // SAFETY: joined once, since this takes it.
        unsafe { libc::pthread_join(self.handle, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_has_its_name_and_may_panic() {
        let (send, receive) = std::sync::mpsc::channel();
        let thread = spawn(c"a name of its o", move || {
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            send.send(name).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        })
        .unwrap();
        assert!(receive.recv().is_ok());
        thread.join();
    }
}
