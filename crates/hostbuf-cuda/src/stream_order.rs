//! Threads that wait for the work of a stream.

#![allow(unsafe_code, reason = "the driver is called by foreign functions, and calls one")]

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys;

use crate::cuda_code::CudaCode;
use crate::cuda_error::CudaError;
use crate::cuda_stream::BorrowedStream;

/// A function that the driver calls once, with the error of the stream if there is one.
type StreamFunction = Box<dyn FnOnce(Option<CudaCode>) + Send>;

impl BorrowedStream {
    /// Returns whether work that is enqueued on the stream now becomes part of a graph.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuStreamIsCapturing")]
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        let functions = self.context().driver().functions().stream_order()?;
        let mut status = 0;
        // SAFETY: `status` is a local variable, and the handle is valid as long as its owner lives.
        self.context().call("cuStreamIsCapturing", || unsafe {
            (functions.is_capturing)(self.raw(), &raw mut status)
        })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint)
    }

    /// Lets a thread of the driver call `function` when all work that the stream has now has ended,
    /// with the error of the context if there is one. Later work on the stream begins after it.
    ///
    /// `function` must not call the driver, not even by a destructor, and must not panic: the
    /// process would end. The driver calls nothing if somebody destroys the context first.
    ///
    /// # Errors
    /// The driver's. `function` is not called then.
    #[doc(alias = "cuStreamAddCallback")]
    #[doc(alias = "cuLaunchHostFunc")]
    pub fn call_after(
        &self,
        function: impl FnOnce(Option<CudaCode>) + Send + 'static,
    ) -> Result<(), CudaError> {
        // The driver does not call the functions of cuLaunchHostFunc after an error of the context.
        let functions = self.context().driver().functions().stream_order()?;
        let boxed: StreamFunction = Box::new(function);
        let data = Box::into_raw(Box::new(boxed));
        // SAFETY: the driver passes `data` to `call` once.
        let added = self.context().call("cuStreamAddCallback", || unsafe {
            (functions.add_callback)(self.raw(), call, data.cast(), 0)
        });
        if added.is_err() {
            // SAFETY: made above, and the driver has refused it.
            drop(unsafe { Box::from_raw(data) });
        }
        added
    }
}

/// Calls the function at `data`.
unsafe extern "C" fn call(_stream: sys::CUstream, status: c_uint, data: *mut c_void) {
    // SAFETY: `call_after` has made it, and the driver calls it once.
    let function = unsafe { Box::from_raw(data.cast::<StreamFunction>()) };
    function(CudaCode::of(status));
}
