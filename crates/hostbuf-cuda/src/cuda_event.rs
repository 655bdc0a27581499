//! Events: points in the work of a stream.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;
use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys::{self, CUevent_flags as Flags};

use crate::cuda_code::CudaCode;
use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::cuda_stream::BorrowedStream;
use crate::functions::EventFunctions;

/// A point in the work of a stream. An event that has recorded nothing counts as complete.
pub struct CudaEvent {
    context: CudaContext,
    handle: usize,
    functions: &'static EventFunctions,
    kind: EventKind,
}

/// The use of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventKind {
    /// Within the process.
    Plain,
    /// As `Plain`. The next [`CudaEvent::after`] uses it again.
    Pooled,
    /// Within the process; it records the time.
    Timed,
    /// In this process and in those that import it.
    Interprocess,
    /// Imported from the process that made it.
    Imported,
}

impl CudaEvent {
    /// Makes an event that records no time, which is the fastest.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuEventCreate")]
    pub fn new(context: &CudaContext) -> Result<CudaEvent, CudaError> {
        CudaEvent::create(context, EventKind::Plain, Flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    /// Makes an event that is complete when the GPU has completed all work that `stream` has now.
    /// The events of a context that were made so are used again, since making one takes longer than
    /// recording it.
    ///
    /// # Errors
    /// [`CudaError`] as [`new`](CudaEvent::new) and [`record`](CudaEvent::record).
    pub fn after(stream: &BorrowedStream) -> Result<CudaEvent, CudaError> {
        let context = stream.context();
        let known = if context.is_inherited() { None } else { context.events().take() };
        let mut event = match known {
            Some(handle) => {
                let functions = context.driver().functions().events()?;
                CudaEvent { context: context.clone(), handle, functions, kind: EventKind::Pooled }
            }
            None => {
                let flags = Flags::CU_EVENT_DISABLE_TIMING as u32;
                CudaEvent::create(context, EventKind::Pooled, flags)?
            }
        };
        if let Err(error) = event.record(stream) {
            // It may have ended with a context that was reset, and is not used again.
            event.kind = EventKind::Plain;
            return Err(error);
        }
        Ok(event)
    }

    /// Makes an event that records the time, for [`elapsed_since`](CudaEvent::elapsed_since).
    ///
    /// # Errors
    /// The driver's.
    pub fn with_timing(context: &CudaContext) -> Result<CudaEvent, CudaError> {
        CudaEvent::create(context, EventKind::Timed, Flags::CU_EVENT_DEFAULT as u32)
    }

    /// Makes an event that other processes can import. It records no time.
    ///
    /// # Errors
    /// The driver's: see [`GpuFeature::IpcEvents`](crate::GpuFeature::IpcEvents).
    #[doc(alias = "CU_EVENT_INTERPROCESS")]
    pub fn interprocess(context: &CudaContext) -> Result<CudaEvent, CudaError> {
        let flags = Flags::CU_EVENT_INTERPROCESS as u32 | Flags::CU_EVENT_DISABLE_TIMING as u32;
        CudaEvent::create(context, EventKind::Interprocess, flags)
    }

    fn create(context: &CudaContext, kind: EventKind, flags: u32) -> Result<CudaEvent, CudaError> {
        let functions = context.driver().functions().events()?;
        let mut handle = null_mut();
        // SAFETY: `handle` is a local variable.
        context.call("cuEventCreate", || unsafe { (functions.create)(&raw mut handle, flags) })?;
        Ok(CudaEvent { context: context.clone(), handle: handle as usize, functions, kind })
    }

    /// Returns the handle by which processes of this host import the event.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] unless [`interprocess`](CudaEvent::interprocess) made the event, and
    /// the driver's.
    #[doc(alias = "cuIpcGetEventHandle")]
    pub fn export(&self) -> Result<[u8; 64], CudaError> {
        if self.kind != EventKind::Interprocess {
            let what = "exporting an event: only the process that made an interprocess event can export it; make it \
                        with CudaEvent::interprocess";
            return Err(CudaError::invalid(what.into()));
        }
        let export = self.context.driver().functions().ipc_events()?.export;
        let mut handle = sys::CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: `handle` is a local variable, and the event exists.
        self.context.call("cuIpcGetEventHandle", || unsafe { export(&raw mut handle, self.raw()) })?;
        Ok(handle.reserved.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// Imports an event of another process of this host, whose GPU must be that of `context`.
    ///
    /// The driver leaves open what happens to work that uses the event after its maker has
    /// destroyed it, so the maker keeps it as long as anybody may use it.
    ///
    /// # Errors
    /// The driver's, including if this process itself made the event.
    #[doc(alias = "cuIpcOpenEventHandle")]
    pub fn import(context: &CudaContext, handle: [u8; 64]) -> Result<CudaEvent, CudaError> {
        let functions = context.driver().functions().events()?;
        let import = context.driver().functions().ipc_events()?.import;
        let shared = sys::CUipcEventHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        let mut handle = null_mut();
        // SAFETY: `handle` is a local variable; the driver checks the handle.
        context.call("cuIpcOpenEventHandle", || unsafe { import(&raw mut handle, shared) })?;
        let kind = EventKind::Imported;
        Ok(CudaEvent { context: context.clone(), handle: handle as usize, functions, kind })
    }

    pub(crate) fn raw(&self) -> sys::CUevent {
        self.handle as sys::CUevent
    }

    /// Records the work that was enqueued on `stream` so far. The event forgets what it recorded
    /// before.
    ///
    /// # Errors
    /// The driver's, including if the stream belongs to another context.
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, stream: &BorrowedStream) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners live.
        stream.call("cuEventRecord", || unsafe { (self.functions.record)(self.raw(), stream.raw()) })
    }

    /// Returns whether all recorded work has ended, without waiting.
    ///
    /// # Errors
    /// The driver's, also that of the work.
    #[doc(alias = "cuEventQuery")]
    pub fn is_complete(&self) -> Result<bool, CudaError> {
        let _current = self.context.make_current()?;
        // SAFETY: the handle is valid as long as `self` lives.
        match CudaCode::of(unsafe { (self.functions.query)(self.raw()) }) {
            None => Ok(true),
            Some(CudaCode::NOT_READY) => Ok(false),
            Some(code) => Err(self.context.driver().error(code, "cuEventQuery")),
        }
    }

    /// Waits until all recorded work has ended.
    ///
    /// # Errors
    /// The driver's, also that of the work.
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is valid as long as `self` lives.
        self.context.call("cuEventSynchronize", || unsafe { (self.functions.synchronize)(self.raw()) })
    }

    /// Returns the time between two complete events, zero if `start` came last. The driver's
    /// resolution is about half a microsecond.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] unless [`with_timing`](CudaEvent::with_timing) made both, and the
    /// driver's: [`CudaCode::NOT_READY`] if one is not complete.
    #[doc(alias = "cuEventElapsedTime")]
    pub fn elapsed_since(&self, start: &CudaEvent) -> Result<Duration, CudaError> {
        if [self.kind, start.kind] != [EventKind::Timed; 2] {
            let what = "the time between two events: one of them records no time; make both with \
                        CudaEvent::with_timing";
            return Err(CudaError::invalid(what.into()));
        }
        let mut milliseconds = 0.0;
        // SAFETY: `milliseconds` is a local variable, and both events exist.
        self.context.call("cuEventElapsedTime", || unsafe {
            (self.functions.elapsed)(&raw mut milliseconds, start.raw(), self.raw())
        })?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1000.0).unwrap_or_default())
    }
}

impl BorrowedStream {
    /// Makes all later work on the stream wait for what `event` has recorded. The event may belong
    /// to another GPU or another process, and may be dropped afterwards.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, event: &CudaEvent) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners live.
        self.call("cuStreamWaitEvent", || unsafe {
            (self.functions().wait_event)(self.raw(), event.raw(), 0)
        })
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaEvent").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let context = &self.context;
        if self.kind == EventKind::Pooled && !context.is_inherited() && context.events().put(self.handle) {
            return;
        }
        // SAFETY: made or imported once, and destroyed once; recorded work may go on.
        self.context.end("an event", "cuEventDestroy", || unsafe { (self.functions.destroy)(self.raw()) });
    }
}
