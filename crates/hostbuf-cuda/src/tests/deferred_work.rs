//! The work of a stream of a fake driver that deferred copies consist of.

#![allow(unsafe_code, reason = "does what the callers of the driver guarantee")]

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys;

/// Work of a stream that a deferred copy consists of. The addresses are those of the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeferredWork {
    /// Waits until the number at an address is at least this.
    Wait(u64, u32),
    /// Copies what the request at an address says.
    Copy(u64),
    /// Sets the number at an address.
    Write(u64, u32),
    /// Calls a function with its data.
    Call(unsafe extern "C" fn(sys::CUstream, c_uint, *mut c_void), usize),
}

impl DeferredWork {
    /// Does the work; a function gets `error`. Returns whether it was done: the stream may wait.
    pub(super) fn run(self, error: c_uint) -> bool {
        /// Returns the host's address for one of the GPU, which is greater by 1.
        fn host<T>(address: u64) -> *mut T {
            (address - 1) as *mut T
        }
        match self {
            // SAFETY: the caller has registered the word.
            DeferredWork::Wait(at, value) => return unsafe { host::<u32>(at).read_volatile() } >= value,
            DeferredWork::Copy(at) => {
                // SAFETY: the caller has registered the request, and guarantees both ranges.
                unsafe {
                    let [to, from, bytes] = host::<[u64; 3]>(at).read_volatile();
                    std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes as usize);
                }
            }
            // SAFETY: the caller has registered the word.
            DeferredWork::Write(at, value) => unsafe { host::<u32>(at).write_volatile(value) },
            // SAFETY: the caller has passed a function with its data.
            DeferredWork::Call(function, data) => unsafe {
                function(std::ptr::null_mut(), error, data as *mut c_void);
            },
        }
        true
    }
}
