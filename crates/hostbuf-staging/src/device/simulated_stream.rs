//! Streams of a simulated device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;

use super::copy_direction::CopyDirection;
use super::device_error::DeviceError;
use super::simulated_copies::SimulatedCopies;
use super::simulated_device::SimulatedDevice;
use super::stream_device::{BeginTransfer, NotifyRing, StreamDevice};

/// A stream of a simulated device, whose work a test does by [`run`](SimulatedStream::run).
#[derive(Default)]
pub struct SimulatedStream {
    work: Mutex<VecDeque<StreamWork>>,
    is_capturing: AtomicBool,
}

enum StreamWork {
    Call(Box<dyn FnOnce() + Send>),
    Copy(Arc<SimulatedCopies>, u32),
    End(Arc<SimulatedCopies>),
}

impl StreamWork {
    /// Does the work, or returns it if the stream waits.
    fn run(self) -> Option<StreamWork> {
        let (is_done, work) = match self {
            StreamWork::Call(call) => {
                call();
                return None;
            }
            StreamWork::Copy(copies, number) => (copies.run(number), StreamWork::Copy(copies, number)),
            StreamWork::End(copies) => (copies.have_ended(), StreamWork::End(copies)),
        };
        (!is_done).then_some(work)
    }
}

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

    /// Checks that transfers can be ordered by the stream.
    fn check(&self) -> Result<(), DeviceError> {
        if self.is_capturing.load(Ordering::SeqCst) {
            let why = "the stream is being captured";
            return Err(DeviceError::refused("a simulated device", "ordering a transfer by a stream", why));
        }
        Ok(())
    }

    /// Enqueues work.
    pub fn push(&self, work: impl FnOnce() + Send + 'static) {
        self.work.lock().ignore_poison().push_back(StreamWork::Call(Box::new(work)));
    }

    /// Does the work up to the first wait that has not ended. Returns whether all was done.
    pub fn run(&self) -> bool {
        loop {
            let next = self.work.lock().ignore_poison().pop_front();
            let Some(next) = next else { return true };
            if let Some(waiting) = next.run() {
                self.work.lock().ignore_poison().push_front(waiting);
                return false;
            }
        }
    }
}

impl fmt::Debug for SimulatedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = self.work.lock().ignore_poison().len();
        f.debug_struct("SimulatedStream").field("work", &work).finish_non_exhaustive()
    }
}

impl StreamDevice for SimulatedDevice {
    type Stream = SimulatedStream;
    type Copies = SimulatedCopies;

    fn begin_after(&self, stream: &SimulatedStream, begin: BeginTransfer) -> Result<(), DeviceError> {
        stream.check()?;
        stream.push(move || begin(Ok(())));
        Ok(())
    }

    fn new_copies(
        &self,
        stream: &SimulatedStream,
        direction: CopyDirection,
        count: u32,
    ) -> Result<SimulatedCopies, DeviceError> {
        stream.check()?;
        Ok(SimulatedCopies::new(self.clone(), direction, count))
    }

    fn enqueue_copies(
        &self,
        stream: &SimulatedStream,
        copies: &Arc<SimulatedCopies>,
    ) -> Result<bool, DeviceError> {
        let mut work = stream.work.lock().ignore_poison();
        work.extend(copies.next_enqueued().map(|number| StreamWork::Copy(copies.clone(), number)));
        Ok(copies.are_enqueued())
    }

    fn enqueue_end(
        &self,
        stream: &SimulatedStream,
        copies: &Arc<SimulatedCopies>,
        executed: NotifyRing,
    ) -> Result<(), DeviceError> {
        let mut work = stream.work.lock().ignore_poison();
        work.extend([StreamWork::End(copies.clone()), StreamWork::Call(executed)]);
        Ok(())
    }
}
