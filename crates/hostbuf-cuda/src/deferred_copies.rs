//! Copies of a stream whose addresses are supplied after they are enqueued.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::c_uint;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cudarc::driver::sys;
use hostbuf_os::poison::IgnorePoison;

use crate::copy_batch::BatchedCopy;
use crate::copy_kernel::CopyKernel;
use crate::copy_requests::CopyRequests;
use crate::cuda_code::CudaCode;
use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::cuda_stream::{BorrowedStream, StreamHandle};
use crate::enqueued_copies::EnqueuedCopies;

/// The number of objects that have not ended.
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// The copies of a stream whose addresses are supplied after they are enqueued. The stream does
/// them in its order, each when it was [started](DeferredCopies::start), and its later work waits
/// until this [ends](DeferredCopies::end) or is dropped.
///
/// A copy on another stream, for which this one then waits, could deadlock: the driver has few
/// queues for copies in each direction (an H100 with driver 580 has four) and divides all streams
/// among them. A copy may be queued after work of a waiting stream, and would never start if that
/// stream waited for it. These copies are work of the waiting stream itself, done by a kernel, so
/// each comes after earlier work only.
///
/// [`BorrowedStream::enqueue_copies`] enqueues the copies, by several calls if there are many, and
/// [`BorrowedStream::enqueue_end`] the wait for the end.
#[must_use = "the stream waits only as long as this lives"]
pub struct DeferredCopies {
    context: CudaContext,
    kernel: CopyKernel,
    requests: Arc<CopyRequests>,
    count: u32,
    started: AtomicU32,
    enqueue_state: Mutex<EnqueueState>,
    /// The number of copies whose kernel was enqueued.
    launched: AtomicU32,
    /// The number of copies that were enqueued.
    enqueued: AtomicU32,
    in_queues: Arc<EnqueuedCopies>,
    /// The error of enqueuing the copy after those.
    refused: OnceLock<CudaError>,
    has_ended: AtomicBool,
}

/// The state of the calls that enqueue copies on a stream.
#[derive(Debug, Default)]
struct EnqueueState {
    /// The stream, from the first call of the driver on.
    stream: Option<StreamHandle>,
    has_end: bool,
}

impl BorrowedStream {
    /// Enqueues those of the copies that were not enqueued, or only the first ones of them if the
    /// streams of the process have many copies that have not ended. Returns whether all copies were
    /// enqueued. The caller then [enqueues the end](BorrowedStream::enqueue_end); otherwise it
    /// tries again later.
    ///
    /// The driver does not know what the stream waits for. So nothing that a thread does before it
    /// starts the copies and ends the object may wait for this stream, or for one that waits for
    /// it.
    ///
    /// # Errors
    /// The driver's, which is then also the error of the copies that were started and not enqueued.
    /// [`CudaError::Invalid`] if copies were enqueued on another stream, or their end on this one.
    #[doc(alias = "cuStreamWaitValue32")]
    #[doc(alias = "cuStreamWriteValue32")]
    pub fn enqueue_copies(&self, copies: &DeferredCopies) -> Result<bool, CudaError> {
        let mut state = copies.enqueue_state(self)?;
        if copies.has_ended.load(Ordering::SeqCst) {
            // They copy nothing, and wait for nothing.
            return Ok(true);
        }
        let enqueued = copies.enqueued.load(Ordering::Relaxed);
        let in_flight = enqueued - copies.requests.copied().min(enqueued);
        let room = copies.in_queues.take_room(in_flight as usize, (copies.count - enqueued) as usize);
        for number in enqueued..enqueued + room as u32 {
            state.stream = Some(self.handle());
            copies.enqueue(self, number).inspect_err(|error| copies.refuse(error))?;
            copies.enqueued.store(number + 1, Ordering::Release);
        }
        Ok(enqueued + room as u32 == copies.count)
    }

    /// Lets all later work on the stream wait until `copies` have ended. A thread of the driver
    /// calls `executed` when the stream has executed the end, even after an error of the context.
    /// The function must not call the driver, not even by a destructor, and must not panic.
    ///
    /// # Errors
    /// As [`enqueue_copies`](BorrowedStream::enqueue_copies).
    pub fn enqueue_end(
        &self,
        copies: &DeferredCopies,
        executed: impl FnOnce() + Send + 'static,
    ) -> Result<(), CudaError> {
        let mut state = copies.enqueue_state(self)?;
        *state = EnqueueState { stream: Some(self.handle()), has_end: true };
        let (requests, in_queues) = (copies.requests.clone(), copies.in_queues.clone());
        let enqueued = copies.wait(self, requests.end_address()).and_then(|()| {
            self.call_after(move |error| {
                requests.finish(error.map(CudaCode::number));
                in_queues.give_back();
                executed();
            })
        });
        enqueued.inspect_err(|error| copies.refuse(error))
    }
}

impl DeferredCopies {
    /// Makes `count` copies, none of which is enqueued.
    ///
    /// # Errors
    /// [`CudaError::MissingFunction`] before CUDA 11.7, [`CudaError::Invalid`] if kernels cannot
    /// use the addresses of the host, and the driver's.
    pub fn new(context: &CudaContext, count: u32) -> Result<DeferredCopies, CudaError> {
        context.driver().functions().stream_waits()?;
        let kernel = CopyKernel::of(context)?;
        let requests = CopyRequests::take(context, count)?;
        PENDING.fetch_add(1, Ordering::SeqCst);
        Ok(DeferredCopies {
            context: context.clone(),
            kernel,
            requests,
            count,
            started: AtomicU32::new(0),
            enqueue_state: Mutex::default(),
            launched: AtomicU32::new(0),
            enqueued: AtomicU32::new(0),
            in_queues: Arc::default(),
            refused: OnceLock::new(),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Locks the state for a call that enqueues on `stream`.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] for another stream or context, and after the end was enqueued.
    fn enqueue_state(&self, stream: &BorrowedStream) -> Result<MutexGuard<'_, EnqueueState>, CudaError> {
        // No lock of a parent is taken.
        drop(self.context.make_current()?);
        let state = self.enqueue_state.lock().ignore_poison();
        let is_other = state.stream.is_some_and(|known| known != stream.handle());
        if is_other || state.has_end || *stream.context() != self.context {
            return Err(CudaError::invalid(
                "the copies cannot be enqueued: they were enqueued on another stream, the stream belongs to another context, \
                 or their end is already enqueued"
                    .into(),
            ));
        }
        Ok(state)
    }

    /// Returns whether a stream of this process may be waiting for an object.
    #[must_use]
    pub fn are_pending() -> bool {
        PENDING.load(Ordering::SeqCst) > 0
    }

    /// Lets a stream wait until the 32 bits at an address of the GPU are at least 1.
    fn wait(&self, stream: &BorrowedStream, address: u64) -> Result<(), CudaError> {
        let functions = stream.context().driver().functions().stream_waits()?;
        let at_least = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
        // SAFETY: the word stays registered and is never freed.
        self.context.call("cuStreamWaitValue32", || unsafe {
            (functions.wait_value)(stream.raw(), address, 1, at_least)
        })
    }

    /// Enqueues one copy.
    fn enqueue(&self, stream: &BorrowedStream, number: u32) -> Result<(), CudaError> {
        let functions = stream.context().driver().functions().stream_waits()?;
        self.wait(stream, self.requests.made_address(number))?;
        // SAFETY: the request is never freed. It is of no bytes unless `start` makes it.
        unsafe { self.kernel.launch(stream, self.requests.request_address(number)) }?;
        self.launched.store(number + 1, Ordering::Release);
        // SAFETY: the word stays registered and is never freed.
        self.context.call("cuStreamWriteValue32", || unsafe {
            (functions.write_value)(stream.raw(), self.requests.copied_address(), number + 1, 0)
        })
    }

    /// Keeps the error of a copy that could not be enqueued.
    fn refuse(&self, error: &CudaError) {
        let _ = self.refused.set(error.clone());
        self.in_queues.give_back();
        // The context may have been reset, and with it the kernel and the registrations.
        CopyKernel::discard(&self.context);
        CopyRequests::discard(&self.context);
    }

    /// Starts the next copy, whose addresses are valid for the GPU and the host (unified
    /// addressing), and returns its number. It ends after the copies before it.
    ///
    /// # Panics
    /// If all copies were started, or they were ended.
    ///
    /// # Safety
    /// Until the copy [has ended](DeferredCopies::has_ended), both ranges exist and are accessible
    /// to the GPU, nothing else writes to them, and nothing else reads the range to which the bytes
    /// are copied.
    pub unsafe fn start(&self, copy: BatchedCopy) -> u32 {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        assert!(number < self.count, "all {} copies were started", self.count);
        // A forked child does not have the memory.
        if !self.context.is_inherited() {
            self.requests.make(number, copy);
        }
        number
    }

    /// Lets the stream go on. Copies that were not started copy nothing. All others have ended.
    pub fn end(&self) {
        if self.context.is_inherited() || self.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let nothing = BatchedCopy { to: 0, from: 0, bytes: 0 };
        let started = self.started.swap(self.count, Ordering::Relaxed).min(self.count);
        (started..self.count).for_each(|number| self.requests.make(number, nothing));
        self.requests.end();
        PENDING.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether a copy has ended.
    ///
    /// # Errors
    /// The error of the context, and for a copy that could not be enqueued that of
    /// [`enqueue_copies`](BorrowedStream::enqueue_copies). If the context is destroyed, the copy
    /// never ends, and there is no error: an event of the context has one. [`CudaError::Forked`] in
    /// a forked child.
    pub fn has_ended(&self, number: u32) -> Result<bool, CudaError> {
        self.context.check_process()?;
        if self.requests.copied() > number {
            return Ok(true);
        }
        if let Some(error) = self.refused.get()
            && number >= self.enqueued.load(Ordering::Acquire)
        {
            return Err(error.clone());
        }
        match self.requests.error().and_then(CudaCode::of) {
            Some(code) => Err(self.context.driver().error(code, "a copy in the order of a stream")),
            None => Ok(false),
        }
    }

    /// Returns whether the stream may do a copy whose end nobody will know, since the driver has
    /// refused a part of it.
    #[must_use]
    pub fn is_abandoned(&self, number: u32) -> bool {
        let is_refused = self.refused.get().is_some() && number >= self.enqueued.load(Ordering::Acquire);
        is_refused && number < self.launched.load(Ordering::Acquire)
    }
}

impl fmt::Debug for DeferredCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeferredCopies { count, started, .. } = self;
        f.debug_struct("DeferredCopies")
            .field("count", count)
            .field("started", started)
            .finish_non_exhaustive()
    }
}

impl Drop for DeferredCopies {
    fn drop(&mut self) {
        self.end();
        let state = self.enqueue_state.get_mut().ignore_poison();
        if state.stream.is_none() {
            // No stream reads the memory.
            self.requests.finish(None);
        }
        if !state.has_end && !self.context.is_inherited() {
            self.in_queues.give_back();
        }
    }
}
