//! The state of a transfer, which its handle and the threads of its ring share.

use std::fmt;
use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, OnceLock};
use std::task::Waker;

use hostbuf_os::poison::IgnorePoison;

use super::gather_plan::GatherPlan;
use super::planned_piece::PiecePart;
use super::transfer_error::TransferError;
use super::transfer_plan::TransferPlan;
use super::transfer_span::TransferSpan;
use crate::counters::{ACTIVE, CounterPage};
use crate::device::{DeviceError, StreamCopies};
use crate::profiler_range::ProfilerRange;
use crate::read_write_at::{ReadAt, WriteAt};
use crate::sync::Mutex;

/// The side of the host, which says in which direction a transfer goes.
pub(crate) enum HostSide {
    /// The bytes go to the device.
    Source(Arc<dyn ReadAt>),
    /// The bytes come from the device.
    Sink(Arc<dyn WriteAt>),
}

impl HostSide {
    /// Returns the name of the source or sink.
    pub(crate) fn name(&self) -> String {
        match self {
            HostSide::Source(source) => source.name(),
            HostSide::Sink(sink) => sink.name(),
        }
    }

    /// Returns what a transfer does with the source or sink.
    fn verb(&self) -> &'static str {
        match self {
            HostSide::Source(_) => "read",
            HostSide::Sink(_) => "write",
        }
    }

    /// Returns the alignment that the source or sink has.
    pub(crate) fn alignment(&self) -> u64 {
        match self {
            HostSide::Source(source) => source.alignment(),
            HostSide::Sink(sink) => sink.alignment(),
        }
    }
}

/// The state of a transfer. It keeps both sides until nothing accesses them any more.
pub(crate) struct TransferState {
    pub(crate) endpoint: HostSide,
    pub(crate) plan: TransferPlan,
    chunks: u64,
    /// The number of the next chunk that no thread has begun; `chunks` or more if there is none.
    next: AtomicU64,
    /// The number of chunks that have not ended.
    unfinished: AtomicU64,
    /// A bit for each chunk that has landed.
    landed: Box<[AtomicU64]>,
    is_stopped: AtomicBool,
    /// True once chunks may begin.
    has_begun: AtomicBool,
    /// The copies of the stream in whose order the transfer is.
    stream_copies: OnceLock<Arc<dyn StreamCopies>>,
    outcome: Mutex<TransferOutcome>,
    ended: Condvar,
    /// Entered by a thread that reads or writes a piece.
    pub(crate) span: TransferSpan,
    /// The counters of the ring, whose clock the transfer uses until it ends.
    counters: Arc<CounterPage>,
}

#[derive(Default)]
struct TransferOutcome {
    is_over: bool,
    /// The first error.
    error: Option<TransferError>,
    waker: Option<Waker>,
    /// An object that is dropped at the end, for which a stream waits.
    held: Option<Box<dyn Send + Sync>>,
    /// The range of the transfer, in the timeline of a profiler.
    range: Option<ProfilerRange>,
}

impl TransferState {
    pub(crate) fn new(endpoint: HostSide, plan: TransferPlan, counters: Arc<CounterPage>) -> TransferState {
        let chunks = plan.chunks();
        let words = chunks.div_ceil(64) as usize;
        let range = (chunks > 0).then(|| {
            counters.begin(ACTIVE);
            let name = || format!("{} {}", endpoint.verb(), endpoint.name());
            ProfilerRange::named(name, plan.bytes())
        });
        let span = match chunks {
            0 => TransferSpan::none(),
            _ => TransferSpan::new(endpoint.verb(), || endpoint.name(), plan.bytes()),
        };
        TransferState {
            endpoint,
            plan,
            chunks,
            next: AtomicU64::new(0),
            unfinished: AtomicU64::new(chunks),
            landed: (0..words).map(|_| AtomicU64::new(0)).collect(),
            is_stopped: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
            stream_copies: OnceLock::new(),
            outcome: Mutex::new(TransferOutcome {
                is_over: chunks == 0,
                range,
                ..TransferOutcome::default()
            }),
            ended: Condvar::new(),
            span,
            counters,
        }
    }

    /// Makes the state of a transfer that has failed before it began.
    pub(crate) fn failed(
        endpoint: HostSide,
        error: TransferError,
        counters: Arc<CounterPage>,
    ) -> TransferState {
        let state = TransferState::new(endpoint, TransferPlan::Gathered(GatherPlan::default()), counters);
        state.outcome.lock().ignore_poison().error = Some(error);
        state
    }

    /// Drops `held` when the transfer has ended, or now if it has.
    pub(crate) fn end_with(&self, held: Box<dyn Send + Sync>) {
        let mut outcome = self.outcome.lock().ignore_poison();
        if !outcome.is_over {
            outcome.held = Some(held);
        }
    }

    /// Lets a stream do the copies. Nothing has begun.
    pub(crate) fn copy_in_stream(&self, copies: Arc<dyn StreamCopies>) {
        let is_first = self.stream_copies.set(copies).is_ok();
        debug_assert!(is_first, "a transfer is in the order of one stream");
    }

    /// Returns the copies of the stream in whose order the transfer is.
    pub(crate) fn stream_copies(&self) -> Option<&dyn StreamCopies> {
        self.stream_copies.get().map(|copies| &**copies)
    }

    /// States that chunks may begin.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    /// Returns whether chunks may begin.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Returns whether the transfer has an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.outcome.lock().ignore_poison().error.is_some()
    }

    /// Begins a chunk, if there is one that no thread has begun.
    pub(crate) fn begin_chunk(&self) -> Option<u64> {
        if self.next.load(Ordering::Relaxed) >= self.chunks {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.chunks).then_some(number)
    }

    /// Returns whether all chunks have begun, or the transfer is stopped.
    pub(crate) fn has_begun_all(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.chunks
    }

    /// Returns whether no more bytes are wanted: the transfer has failed, or was cancelled.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Ends a chunk that has landed.
    pub(crate) fn land(&self, chunk: u64) {
        // Release, for whoever reads what has landed.
        self.landed[(chunk / 64) as usize].fetch_or(1 << (chunk % 64), Ordering::Release);
        self.finish(1);
    }

    /// Ends a chunk that has not landed.
    pub(crate) fn skip(&self) {
        self.finish(1);
    }

    /// Stops the transfer: no chunk begins any more. The first error counts.
    pub(crate) fn stop(&self, error: TransferError) {
        {
            let mut outcome = self.outcome.lock().ignore_poison();
            if outcome.is_over {
                return;
            }
            outcome.error.get_or_insert(error);
        }
        self.is_stopped.store(true, Ordering::Relaxed);
        let begun = self.next.swap(self.chunks, Ordering::Relaxed);
        if begun < self.chunks {
            self.finish(self.chunks - begun);
        }
    }

    /// Stops the transfer, since the device has failed to copy the bytes from the beginning of
    /// `place` on; `None` for all bytes.
    pub(crate) fn stop_by_device(&self, place: Option<PiecePart>, source: DeviceError) {
        let place = place.or_else(|| self.plan.first_part(0));
        let (offset, address) = place.map_or((0, 0), |part| (part.file_offset, part.address));
        self.stop(TransferError::Device { name: self.endpoint.name(), offset, address, source, landed: 0 });
    }

    fn finish(&self, chunks: u64) {
        // Release and acquire: whoever sees the end sees what all threads have done.
        if self.unfinished.fetch_sub(chunks, Ordering::AcqRel) != chunks {
            return;
        }
        self.counters.end(ACTIVE);
        self.span.record(|| self.result(&self.outcome.lock().ignore_poison()));
        let (waker, held) = {
            let mut outcome = self.outcome.lock().ignore_poison();
            outcome.is_over = true;
            outcome.range = None;
            (take(&mut outcome.waker), take(&mut outcome.held))
        };
        drop(held);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the number of bytes at the beginning of the transfer that have landed.
    pub(crate) fn landed(&self) -> u64 {
        let word = |number: usize| self.landed[number].load(Ordering::Acquire);
        let full = (0..self.landed.len()).take_while(|&number| word(number) == u64::MAX).count();
        let rest = if full < self.landed.len() { u64::from(word(full).trailing_ones()) } else { 0 };
        let chunks = full as u64 * 64 + rest;
        if chunks >= self.chunks { self.plan.bytes() } else { self.plan.bytes_before(chunks) }
    }

    /// Returns whether the transfer has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.outcome.lock().ignore_poison().is_over
    }

    /// Returns the result, once the transfer has ended; `waker` is woken at the end otherwise.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Result<u64, TransferError>> {
        let mut outcome = self.outcome.lock().ignore_poison();
        if !outcome.is_over {
            match &mut outcome.waker {
                Some(known) if known.will_wake(waker) => {}
                other => *other = Some(waker.clone()),
            }
            return None;
        }
        Some(self.result(&outcome))
    }

    /// Waits until the transfer has ended.
    pub(crate) fn wait(&self) -> Result<u64, TransferError> {
        let mut outcome = self.outcome.lock().ignore_poison();
        while !outcome.is_over {
            outcome = self.ended.wait(outcome).ignore_poison();
        }
        self.result(&outcome)
    }

    fn result(&self, outcome: &TransferOutcome) -> Result<u64, TransferError> {
        let landed = self.landed();
        match &outcome.error {
            // A transfer that was cancelled after its last byte is complete; one that never began
            // has no bytes.
            Some(error) if landed < self.plan.bytes() || self.chunks == 0 => {
                Err(error.clone().with_landed(landed))
            }
            _ => Ok(landed),
        }
    }
}

impl fmt::Debug for TransferState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferState").field("bytes", &self.plan.bytes()).finish_non_exhaustive()
    }
}
