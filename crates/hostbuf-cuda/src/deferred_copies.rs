//! Copies of a stream whose operands a thread states later.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::c_uint;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys;
use hostbuf_os::poison::IgnorePoison;

use crate::copy_batch::BatchedCopy;
use crate::copy_kernel::CopyKernel;
use crate::copy_requests::CopyRequests;
use crate::cuda_code::CudaCode;
use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::cuda_stream::BorrowedStream;

/// The number of objects that have not ended.
static PENDING: AtomicUsize = AtomicUsize::new(0);
/// The number of copies that streams were given and have not done, of objects that have not ended.
/// An object counts as one more.
static GIVEN: Mutex<usize> = Mutex::new(0);
/// The largest number of them. A copy is three operations, and a queue of the driver has room for
/// about a thousand. A thread that gives one more waits in the driver, with a lock that other
/// threads need for their calls.
const MOST_GIVEN: usize = 200;

/// The copies of a stream whose operands a thread states later. The stream does them in its order,
/// each when it was [started](DeferredCopies::start), and its later work waits until this
/// [ends](DeferredCopies::end) or is dropped.
///
/// A copy of another stream, which this one then waits for, would be different: the driver has few
/// queues for copies in each direction (an H100 with driver 580 has four) and divides all streams
/// among them. A copy may come to be behind a waiting stream in its queue, and would never start if
/// that stream waited for it. These copies are work of the waiting stream itself, done by a kernel,
/// so each is behind earlier work only.
///
/// [`BorrowedStream::give_copies`] gives the stream the copies, by several calls if there are many,
/// and [`BorrowedStream::give_end`] the wait for the end.
#[must_use = "the stream waits only as long as this lives"]
pub struct DeferredCopies {
    context: CudaContext,
    kernel: CopyKernel,
    requests: Arc<CopyRequests>,
    count: u32,
    started: AtomicU32,
    /// The number of copies that the stream was given.
    given: AtomicU32,
    /// The number by which this counts in [`GIVEN`], whose lock guards it.
    counted: AtomicUsize,
    /// The error of giving the copy behind those.
    refused: OnceLock<CudaError>,
    has_ended: AtomicBool,
}

impl BorrowedStream {
    /// Gives the stream those of the copies that it was not given, or the first ones of them if the
    /// streams of the process were given many that they have not done. Returns whether the stream
    /// was given all. It then [gets the end](BorrowedStream::give_end); otherwise the caller tries
    /// again later. Nothing else gives the stream these copies meanwhile.
    ///
    /// The driver does not know what the stream waits for. So nothing that a thread does before it
    /// starts the copies and ends the object may wait for this stream, or for one that waits for
    /// it.
    ///
    /// # Errors
    /// [`CudaError::MissingFunction`] before CUDA 11.7, and the driver's, also those of the copies
    /// that were started and not given.
    #[doc(alias = "cuStreamWaitValue32")]
    #[doc(alias = "cuStreamWriteValue32")]
    pub fn give_copies(&self, copies: &DeferredCopies) -> Result<bool, CudaError> {
        let last = copies.given.load(Ordering::Relaxed) + copies.take_room();
        let given = (copies.given.load(Ordering::Relaxed)..last).try_for_each(|number| {
            copies.give(self, number)?;
            copies.given.store(number + 1, Ordering::Release);
            Ok(())
        });
        given.inspect_err(|error: &CudaError| copies.refuse(error))?;
        Ok(last == copies.count || copies.has_ended.load(Ordering::SeqCst))
    }

    /// Lets all later work on the stream wait until `copies` have ended. `passed` is called by a
    /// thread of the driver when the stream has come past that, also with an error of the context;
    /// it must not call the driver, not even by a destructor, and must not panic.
    ///
    /// # Errors
    /// As [`give_copies`](BorrowedStream::give_copies).
    pub fn give_end(
        &self,
        copies: &DeferredCopies,
        passed: impl FnOnce() + Send + 'static,
    ) -> Result<(), CudaError> {
        let requests = copies.requests.clone();
        let given = copies.wait(self, requests.end_address()).and_then(|()| {
            self.call_after(move |error| {
                requests.pass(error.map(CudaCode::number));
                passed();
            })
        });
        given.inspect_err(|error| copies.refuse(error))
    }
}

impl DeferredCopies {
    /// Makes `count` copies, which no stream was given.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] if kernels cannot use the addresses of the host, and the driver's.
    pub fn new(context: &CudaContext, count: u32) -> Result<DeferredCopies, CudaError> {
        let kernel = CopyKernel::of(context)?;
        let requests = CopyRequests::take(context, count)?;
        PENDING.fetch_add(1, Ordering::SeqCst);
        *GIVEN.lock().ignore_poison() += 1;
        Ok(DeferredCopies {
            context: context.clone(),
            kernel,
            requests,
            count,
            started: AtomicU32::new(0),
            given: AtomicU32::new(0),
            counted: AtomicUsize::new(1),
            refused: OnceLock::new(),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Returns whether a stream of this process may be waiting for an object.
    #[must_use]
    pub fn are_pending() -> bool {
        PENDING.load(Ordering::SeqCst) > 0
    }

    /// Returns the number of copies that the stream may be given now, which count from now on.
    fn take_room(&self) -> u32 {
        let given = self.given.load(Ordering::Relaxed);
        let copied = self.requests.copied().min(given);
        let (left, on_their_way) = ((self.count - given) as usize, (given - copied) as usize + 1);
        let mut all = GIVEN.lock().ignore_poison();
        if self.has_ended.load(Ordering::SeqCst) {
            // They copy nothing, and wait for nothing.
            return 0;
        }
        let others = *all - self.counted.load(Ordering::Relaxed);
        // A copy that is done leaves its room to the next one of the same object: the copies of
        // others may be behind that in a queue, and must not take its room.
        let taken = left.min(MOST_GIVEN.saturating_sub(others + on_their_way));
        self.counted.store(on_their_way + taken, Ordering::Relaxed);
        *all = others + on_their_way + taken;
        taken as u32
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

    /// Gives a stream one copy.
    fn give(&self, stream: &BorrowedStream, number: u32) -> Result<(), CudaError> {
        let functions = stream.context().driver().functions().stream_waits()?;
        self.wait(stream, self.requests.made_address(number))?;
        // SAFETY: the request is never freed. It is of no bytes unless `start` makes it.
        unsafe { self.kernel.launch(stream, self.requests.request_address(number)) }?;
        // SAFETY: the word stays registered and is never freed.
        self.context.call("cuStreamWriteValue32", || unsafe {
            (functions.write_value)(stream.raw(), self.requests.copied_address(), number + 1, 0)
        })
    }

    /// Keeps the error of a copy that the stream was not given.
    fn refuse(&self, error: &CudaError) {
        let _ = self.refused.set(error.clone());
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
        assert!(number < self.count, "a stream was given {} copies, which were all started", self.count);
        self.requests.make(number, copy);
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
        *GIVEN.lock().ignore_poison() -= self.counted.load(Ordering::Relaxed);
    }

    /// Returns whether a copy has ended.
    ///
    /// # Errors
    /// The error of the context, and for a copy that the stream was not given that of
    /// [`give_copies`](BorrowedStream::give_copies). The driver reports none if somebody destroys
    /// the context.
    pub fn has_ended(&self, number: u32) -> Result<bool, CudaError> {
        if self.requests.copied() > number {
            return Ok(true);
        }
        if let Some(error) = self.refused.get()
            && number >= self.given.load(Ordering::Acquire)
        {
            return Err(error.clone());
        }
        match self.requests.error().and_then(CudaCode::of) {
            Some(code) => Err(self.context.driver().error(code, "a copy in the order of a stream")),
            None => Ok(false),
        }
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
    }
}
