//! Copies that a stream of a simulated device does in its order.

#![allow(unsafe_code, reason = "copies between ranges that the caller of the device guarantees")]

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hostbuf_os::poison::IgnorePoison;

use super::copy_direction::CopyDirection;
use super::device_copy::DeviceCopy;
use super::device_error::DeviceError;
use super::simulated_device::{Fault, SimulatedDevice};
use super::stream_device::StreamCopies;

/// The copies of a transfer that a stream of a simulated device does.
pub struct SimulatedCopies {
    device: SimulatedDevice,
    direction: CopyDirection,
    count: u32,
    requests: Mutex<Vec<Request>>,
    is_over: AtomicBool,
    /// The number of copies that were enqueued.
    enqueued: AtomicU32,
}

struct Request {
    copy: DeviceCopy,
    fault: Option<Fault>,
    /// True if the bytes were copied, once the request has ended.
    has_copied: Option<bool>,
}

// SAFETY: the caller guarantees the memory until the copy has ended.
unsafe impl Send for Request {}

impl SimulatedCopies {
    pub(super) fn new(device: SimulatedDevice, direction: CopyDirection, count: u32) -> SimulatedCopies {
        let (is_over, enqueued) = (AtomicBool::new(false), AtomicU32::new(0));
        SimulatedCopies { device, direction, count, requests: Mutex::default(), is_over, enqueued }
    }

    /// Returns the numbers of the next copies to enqueue: at most two at a time.
    pub(super) fn next_enqueued(&self) -> Range<u32> {
        let from = self.enqueued.load(Ordering::Relaxed);
        let to = self.count.min(from + 2);
        self.enqueued.store(to, Ordering::Relaxed);
        from..to
    }

    /// Returns whether all copies were enqueued.
    pub(super) fn are_enqueued(&self) -> bool {
        self.enqueued.load(Ordering::Relaxed) == self.count
    }

    /// Does copy `number`. Returns `false` if it was not started, and the stream waits.
    pub(super) fn run(&self, number: u32) -> bool {
        let (copy, fault) = {
            let requests = self.requests.lock().ignore_poison();
            match requests.get(number as usize) {
                Some(request) => (request.copy, request.fault),
                None => return self.is_over.load(Ordering::SeqCst),
            }
        };
        // SAFETY: the caller of `start` guarantees both ranges.
        let has_copied = unsafe { self.device.copy(self.direction, &copy.into(), fault) };
        self.requests.lock().ignore_poison()[number as usize].has_copied = Some(has_copied);
        true
    }

    /// Returns whether the copies have ended, and the stream goes on.
    pub(super) fn have_ended(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for SimulatedCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedCopies").field("count", &self.count).finish_non_exhaustive()
    }
}

impl StreamCopies for SimulatedCopies {
    unsafe fn start(&self, copy: &DeviceCopy) -> u32 {
        let (_, fault) = self.device.next_copy();
        let mut requests = self.requests.lock().ignore_poison();
        let number = requests.len() as u32;
        assert!(number < self.count, "all {} copies were started", self.count);
        requests.push(Request { copy: *copy, fault, has_copied: None });
        number
    }

    fn has_ended(&self, number: u32) -> Result<bool, DeviceError> {
        if self.device.is_lost() {
            return Err(self.device.error("copying", "the device is lost").lost());
        }
        match self.requests.lock().ignore_poison()[number as usize].has_copied {
            Some(false) => Err(self.device.error("copying", "failed")),
            has_copied => Ok(has_copied.is_some()),
        }
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}
