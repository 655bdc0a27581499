//! Streams of a GPU that the program owns.

#![allow(unsafe_code, reason = "a stream is a handle of the caller")]

use std::ffi::c_void;

use hostbuf_cuda::{BorrowedStream, CudaContext, StreamHandle};

use crate::pool_status::cuda_error;
use crate::status::CallResult;

/// Returns the program's stream.
///
/// # Safety
/// `stream` is null or a stream of the GPU of `context` that is destroyed after the result was
/// dropped.
pub(crate) unsafe fn borrowed(context: &CudaContext, stream: *mut c_void) -> CallResult<BorrowedStream> {
    // SAFETY: by the contract of this function.
    unsafe { BorrowedStream::from_raw(context, StreamHandle(stream as usize)) }.map_err(cuda_error)
}
