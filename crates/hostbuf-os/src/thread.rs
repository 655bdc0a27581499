//! The library's internal threads, started by `pthread_create(3)`.
//!
//! The standard library holds a lock of its own while a thread starts and while it ends. If a
//! process forks while another thread holds that lock, it stays locked in the child, and threads
//! that the child starts never run. The C library makes its own locks usable in the child, so
//! caches work there.

#![allow(unsafe_code, reason = "starts threads by pthread_create")]

use std::ffi::CStr;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::memory;

/// The size of a thread's stack in bytes, without thread-local variables. It is the same as in the
/// standard library.
const STACK: usize = 2 << 20;

/// A running thread that has not been joined.
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
    // SAFETY: `spawn` created it by `Box::into_raw`, for this thread only.
    let Start { body, finished } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // The panic hook has already reported the panic, which must not unwind into the C library.
    let _ = catch_unwind(AssertUnwindSafe(body));
    finished.store(true, Ordering::Release);
    std::ptr::null_mut()
}

/// Returns the size of the stack: [`STACK`], and the minimum of the C library. In glibc that
/// includes the thread-local variables of the program and its libraries, which lie in the stack. A
/// program may have many megabytes of them (threadprivate arrays in Fortran), and pthread_create
/// fails if the stack cannot hold them.
fn stack_size(attributes: *const libc::pthread_attr_t) -> usize {
    type Minimum = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    // The standard library calls this function of glibc too. Other C libraries do not have it, and
    // allocate thread-local variables separately. SAFETY: a NUL-terminated name.
    let minimum = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if minimum.is_null() {
        return STACK;
    }
    // SAFETY: the function has this type, and the caller's attributes are initialised.
    let minimum = unsafe {
        let minimum = std::mem::transmute::<*mut libc::c_void, Minimum>(minimum);
        minimum(attributes)
    };
    (STACK + minimum).next_multiple_of(memory::page_size() as usize)
}

/// Starts a thread that runs `body`. `name` has at most 15 bytes, the limit of the kernel.
///
/// # Errors
/// As `pthread_create(3)`: `EAGAIN` if there are too many threads or there is not enough memory.
pub fn spawn(name: &CStr, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let finished = Arc::new(AtomicBool::new(false));
    let start = Box::into_raw(Box::new(Start { body: Box::new(body), finished: finished.clone() }));
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut handle = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialised first and destroyed last; `start` is the argument that
    // `begin` expects.
    let result = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_size(attributes.as_ptr()));
        let result = libc::pthread_create(handle.as_mut_ptr(), attributes.as_ptr(), begin, start.cast());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        result
    };
    if result != 0 {
        // SAFETY: no thread was started, so `start` is still owned here.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(result));
    }
    // SAFETY: pthread_create has succeeded, so it has written the handle.
    let handle = unsafe { handle.assume_init() };
    // SAFETY: the thread has not been joined, and `name` is NUL-terminated.
    unsafe { libc::pthread_setname_np(handle, name.as_ptr()) };
    Ok(Thread { handle, finished })
}

impl Thread {
    /// Returns whether the body of the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Waits until the thread has ended.
    pub fn join(self) {
        let mut thread = ManuallyDrop::new(self);
        // SAFETY: the thread is joined only once, since `join` consumes it, and it is not detached.
        // Its flag is not used afterwards.
        unsafe {
            libc::pthread_join(thread.handle, std::ptr::null_mut());
            std::ptr::drop_in_place(&raw mut thread.finished);
        }
    }
}

/// Lets the thread free its stack when it ends, since nobody waits for it.
impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread has been neither joined nor detached.
        unsafe { libc::pthread_detach(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_name_and_may_panic() {
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
