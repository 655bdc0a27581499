//! Streams: queues of a GPU's work.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::c_uint;
use std::fmt;
use std::ops::Deref;
use std::ptr::null_mut;

use cudarc::driver::sys;
use hostbuf_os::Bytes;

use crate::cuda_code::CudaCode;
use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::device_span::DeviceSpan;
use crate::functions::StreamFunctions;
use crate::thread_streams;

/// The driver's handle of a stream, as a number: the value of a `CUstream` or `cudaStream_t`, which
/// PyTorch calls `stream.cuda_stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// Exhaustive: a number, and nothing else.
pub struct StreamHandle(pub usize);

impl StreamHandle {
    /// The default stream of a context. A library that was compiled for default streams of each
    /// thread means [`PER_THREAD`](StreamHandle::PER_THREAD) by this handle.
    pub const DEFAULT: StreamHandle = StreamHandle(0);
    /// The default stream of a context by its other name. It waits for all streams but those that
    /// do not block, and they wait for it.
    #[doc(alias = "CU_STREAM_LEGACY")]
    pub const LEGACY: StreamHandle = StreamHandle(1);
    /// The default stream of the calling thread.
    #[doc(alias = "CU_STREAM_PER_THREAD")]
    pub const PER_THREAD: StreamHandle = StreamHandle(2);

    /// Returns whether this is one of the default streams, which each context has.
    #[must_use]
    pub fn is_default(self) -> bool {
        self.0 <= StreamHandle::PER_THREAD.0
    }
}

/// A stream that another part of the process owns, such as one of PyTorch, or a default stream.
///
/// [`CudaStream`] dereferences to it, so all operations are here. They start work in the order of
/// the calls, and do not wait for it unless they say so.
pub struct BorrowedStream {
    context: CudaContext,
    handle: StreamHandle,
    functions: &'static StreamFunctions,
}

impl BorrowedStream {
    /// Makes a stream of its handle. Nothing is destroyed when it is dropped.
    ///
    /// # Errors
    /// [`CudaError::MissingFunction`].
    ///
    /// # Safety
    /// `handle` is a default stream, or a stream of `context` that is destroyed later than the
    /// returned value is dropped.
    pub unsafe fn from_raw(context: &CudaContext, handle: StreamHandle) -> Result<BorrowedStream, CudaError> {
        let functions = context.driver().functions().streams()?;
        Ok(BorrowedStream { context: context.clone(), handle, functions })
    }

    /// Returns the handle.
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Returns the context.
    #[must_use]
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Calls a function of the driver with this stream. The driver finds the context by the handle,
    /// except for a default stream, and changing the current context takes about as long as such a
    /// function. A driver that demands a current context gets it.
    pub(crate) fn call(
        &self,
        doing: impl fmt::Display,
        function: impl Fn() -> c_uint,
    ) -> Result<(), CudaError> {
        if self.handle.is_default() || self.context.is_inherited() {
            return self.context.call(doing, function);
        }
        match function() {
            answer if CudaCode::of(answer) == Some(CudaCode::INVALID_CONTEXT) => {
                self.context.call(doing, function)
            }
            answer => self.context.driver().checked(answer, doing),
        }
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.handle.0 as sys::CUstream
    }

    pub(crate) fn functions(&self) -> &'static StreamFunctions {
        self.functions
    }

    /// Starts a copy from host memory to the GPU's address `to`. From memory that is neither
    /// registered nor page-locked, the driver first copies in this thread.
    ///
    /// # Errors
    /// The driver's. It may be the error of earlier work on the stream.
    ///
    /// # Safety
    /// Until the copy has ended (see [`synchronize`](BorrowedStream::synchronize), or an event that
    /// is recorded after it), `from` is readable memory that nothing writes to and that stays
    /// mapped, and as many bytes at `to` are memory of the GPU that nothing else uses.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub unsafe fn copy_to_device(&self, from: *const [u8], to: u64) -> Result<(), CudaError> {
        let bytes = from.len();
        // SAFETY: the caller guarantees both ranges.
        self.context.call(Copying("cuMemcpyHtoDAsync", bytes), || unsafe {
            (self.functions.copy_to_device)(to, from.cast(), bytes, self.raw())
        })
    }

    /// Starts a copy from the GPU's memory to host memory.
    ///
    /// # Errors
    /// As [`copy_to_device`](BorrowedStream::copy_to_device).
    ///
    /// # Safety
    /// Until the copy has ended, `from` is memory of the GPU that nothing writes to, and `to` is
    /// writable memory of this process that nothing else accesses and that stays mapped.
    ///
    /// # Panics
    /// If the lengths differ.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub unsafe fn copy_to_host(&self, from: DeviceSpan, to: *mut [u8]) -> Result<(), CudaError> {
        let bytes = to.len();
        assert_eq!(bytes, from.bytes(), "a copy has one length");
        // SAFETY: the caller guarantees both ranges.
        self.context.call(Copying("cuMemcpyDtoHAsync", bytes), || unsafe {
            (self.functions.copy_to_host)(to.cast(), from.address(), bytes, self.raw())
        })
    }

    /// Starts a copy within the GPU's memory, to its address `to`.
    ///
    /// # Errors
    /// As [`copy_to_device`](BorrowedStream::copy_to_device).
    ///
    /// # Safety
    /// Until the copy has ended, `from` is memory of the GPU that nothing writes to, and as many
    /// bytes at `to` are memory of the GPU that nothing else uses. The ranges do not overlap.
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub unsafe fn copy_on_device(&self, from: DeviceSpan, to: u64) -> Result<(), CudaError> {
        let bytes = from.bytes();
        // SAFETY: the caller guarantees both ranges.
        self.context.call(Copying("cuMemcpyDtoDAsync", bytes), || unsafe {
            (self.functions.copy_on_device)(to, from.address(), bytes, self.raw())
        })
    }

    /// Waits until all work on the stream has ended.
    ///
    /// # Errors
    /// The driver's, also that of the work.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is valid as long as its owner lives.
        self.context.call("cuStreamSynchronize", || unsafe { (self.functions.synchronize)(self.raw()) })
    }

    /// Returns whether all work on the stream has ended, without waiting.
    ///
    /// # Errors
    /// The driver's, also that of the work.
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _current = self.context.make_current()?;
        // SAFETY: the handle is valid as long as its owner lives.
        match CudaCode::of(unsafe { (self.functions.query)(self.raw()) }) {
            None => Ok(true),
            Some(CudaCode::NOT_READY) => Ok(false),
            Some(code) => Err(self.context.driver().error(code, "cuStreamQuery")),
        }
    }
}

impl fmt::Debug for BorrowedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedStream").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// A stream of this crate.
///
/// Dropping it does not wait: work that has started goes on, and its memory must stay until it has
/// ended.
#[derive(Debug)]
pub struct CudaStream {
    stream: BorrowedStream,
    /// True for the stream of a thread, which ends with its context.
    is_kept: bool,
}

impl CudaStream {
    /// Makes a stream that does not wait for the default stream of the context.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuStreamCreate")]
    pub fn new(context: &CudaContext) -> Result<CudaStream, CudaError> {
        CudaStream::with_handle(context, create(context)?, false)
    }

    /// Returns the stream that the calling thread has for short work in a context, such as a copy
    /// that it waits for. Making and destroying a stream takes longer than such a copy.
    ///
    /// The first call of a thread for a context makes the stream, as [`new`](CudaStream::new) does,
    /// or takes that of a thread that has ended. It stays for the life of the thread, and ends with
    /// the context: dropping the returned value keeps it. A context that was reset and made again
    /// gets a new one.
    ///
    /// All parts of the thread have the same stream. So wait for the work before you return, and
    /// let the stream wait for nothing that comes later. The value may be used in another thread.
    ///
    /// A driver before CUDA 12 does not tell such contexts from each other. There, each call makes
    /// a stream, which ends when the value is dropped.
    ///
    /// # Errors
    /// The driver's, and [`CudaError::Forked`] in a forked child.
    pub fn of_thread(context: &CudaContext) -> Result<CudaStream, CudaError> {
        match thread_streams::of_thread(context, || create(context))? {
            Some(handle) => CudaStream::with_handle(context, handle, true),
            None => CudaStream::new(context),
        }
    }

    fn with_handle(context: &CudaContext, handle: usize, is_kept: bool) -> Result<CudaStream, CudaError> {
        let (context, functions) = (context.clone(), context.driver().functions().streams()?);
        let stream = BorrowedStream { context, handle: StreamHandle(handle), functions };
        Ok(CudaStream { stream, is_kept })
    }
}

/// Makes a stream, and returns its handle.
fn create(context: &CudaContext) -> Result<usize, CudaError> {
    let functions = context.driver().functions().streams()?;
    let mut handle = null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: `handle` is a local variable.
    context.call("cuStreamCreate", || unsafe { (functions.create)(&raw mut handle, flags) })?;
    Ok(handle as usize)
}

impl Deref for CudaStream {
    type Target = BorrowedStream;

    fn deref(&self) -> &BorrowedStream {
        &self.stream
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // SAFETY: made by `create`, and destroyed once.
        self.context.end("a stream", "cuStreamDestroy", || unsafe { (self.functions.destroy)(self.raw()) });
    }
}

/// A copy in an error message: the function, and the number of bytes.
struct Copying(&'static str, usize);

impl fmt::Display for Copying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.0, Bytes(self.1 as u64))
    }
}
