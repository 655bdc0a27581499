//! Streams of a simulated device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;

use super::device_error::DeviceError;
use super::simulated_device::SimulatedDevice;
use super::stream_device::{BeginTransfer, StreamDevice};

/// A stream of a simulated device, whose work a test does by [`run`](SimulatedStream::run).
#[derive(Default)]
pub struct SimulatedStream {
    work: Mutex<VecDeque<StreamWork>>,
    is_capturing: AtomicBool,
}

enum StreamWork {
    Call(Box<dyn FnOnce() + Send>),
    Wait(Arc<AtomicBool>),
}

/// An object for which a simulated stream waits until it is dropped.
#[derive(Debug)]
pub struct SimulatedHold(Arc<AtomicBool>);

impl SimulatedStream {
    /// Makes a stream without work.
    #[must_use]
    pub fn new() -> SimulatedStream {
        SimulatedStream::default()
    }

    /// Sets whether the work of the stream is being captured.
    pub fn capture(&self, is_capturing: bool) {
        self.is_capturing.store(is_capturing, Ordering::SeqCst);
    }

    /// Gives the stream work.
    pub fn push(&self, work: impl FnOnce() + Send + 'static) {
        self.work.lock().ignore_poison().push_back(StreamWork::Call(Box::new(work)));
    }

    /// Does the work up to the first wait that has not ended. Returns whether all was done.
    pub fn run(&self) -> bool {
        loop {
            let call = {
                let mut work = self.work.lock().ignore_poison();
                match work.pop_front() {
                    None => return true,
                    Some(StreamWork::Call(call)) => call,
                    Some(StreamWork::Wait(is_over)) if is_over.load(Ordering::SeqCst) => continue,
                    Some(wait) => {
                        work.push_front(wait);
                        return false;
                    }
                }
            };
            call();
        }
    }
}

impl fmt::Debug for SimulatedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = self.work.lock().ignore_poison().len();
        f.debug_struct("SimulatedStream").field("work", &work).finish_non_exhaustive()
    }
}

impl Drop for SimulatedHold {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl StreamDevice for SimulatedDevice {
    type Stream = SimulatedStream;
    type Hold = SimulatedHold;

    fn begin_after(&self, stream: &SimulatedStream, begin: BeginTransfer) -> Result<(), DeviceError> {
        if stream.is_capturing.load(Ordering::SeqCst) {
            let why = "the stream is being captured";
            return Err(DeviceError::refused("a simulated device", "ordering a transfer by a stream", why));
        }
        stream.push(move || begin(Ok(())));
        Ok(())
    }

    fn hold(&self, stream: &SimulatedStream) -> Result<SimulatedHold, DeviceError> {
        let is_over = Arc::new(AtomicBool::new(false));
        stream.work.lock().ignore_poison().push_back(StreamWork::Wait(is_over.clone()));
        Ok(SimulatedHold(is_over))
    }
}
