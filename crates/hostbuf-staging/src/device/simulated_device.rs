//! A device in ordinary memory, which delays, reorders, fails and disappears on request.

#![allow(unsafe_code, reason = "copies between ranges that the caller of the device guarantees")]

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use hostbuf_os::poison::IgnorePoison;

use super::copy_device::CopyDevice;
use super::copy_direction::CopyDirection;
use super::device_buffer::DeviceBuffer;
use super::device_copy::DeviceCopy;
use super::device_error::DeviceError;
use super::device_rows::DeviceRows;
use super::pending_copies::{CopyOrder, PendingCopies, PendingCopy};
use crate::ring::{HostMemory, RingMemory};

/// An action of a simulated device instead of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It refuses the copy when it is requested.
    Refuse,
    /// It reports the copy as failed when it is asked about it.
    Fail,
    /// It takes this time first.
    Delay(Duration),
    /// It does nothing until [`SimulatedDevice::resume`].
    Hang,
    /// It is lost, with all copies that it has not ended.
    Lose,
}

/// A device in ordinary memory, for tests. A thread copies, in the order of the requests or in
/// [another one](SimulatedDevice::reordering). Clones are the same device.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    shared: Arc<SharedDevice>,
    messages: mpsc::Sender<Message>,
    is_reordering: bool,
}

/// A message to the thread of a device.
enum Message {
    Copy(Request),
    /// A thread waits for a copy.
    Waiting,
}

#[derive(Debug, Default)]
struct SharedDevice {
    state: Mutex<DeviceState>,
    changed: Condvar,
    requested: AtomicU64,
    /// The number of copies that have ended before one that was requested earlier.
    reordered: AtomicU64,
    /// The number of questions about copies that had not ended.
    asked: AtomicU64,
    /// The number of threads that wait for a copy.
    waiting: AtomicU64,
}

#[derive(Debug, Default)]
struct DeviceState {
    /// The faults of copies, by their number.
    faults: BTreeMap<u64, Fault>,
    is_hanging: bool,
    is_lost: bool,
}

/// An event of a simulated device: the number of the last copy that it records, and of the last one
/// of them that has ended.
#[derive(Clone, Debug)]
pub struct SimulatedEvent(Arc<Mutex<EventState>>);

#[derive(Debug, Default)]
struct EventState {
    recorded: u64,
    ended: u64,
    has_failed: bool,
}

struct Request {
    rows: DeviceRows,
    direction: CopyDirection,
    number: u64,
    fault: Option<Fault>,
    event: SimulatedEvent,
}

// SAFETY: the caller guarantees the memory until the event is complete.
unsafe impl Send for Request {}

impl PendingCopy for Request {
    fn number(&self) -> u64 {
        self.number
    }

    fn shares_event(&self, other: &Request) -> bool {
        Arc::ptr_eq(&self.event.0, &other.event.0)
    }
}

/// The number of questions about copies that have not ended, after which a device that reorders
/// does one.
const QUESTIONS: u64 = 16;

impl Default for SimulatedDevice {
    fn default() -> SimulatedDevice {
        SimulatedDevice::new()
    }
}

impl SimulatedDevice {
    /// Makes a device.
    ///
    /// # Panics
    /// If the kernel starts no thread.
    #[must_use]
    pub fn new() -> SimulatedDevice {
        SimulatedDevice::with_order(CopyOrder::Requested)
    }

    /// Makes a device whose copies end in another order than they were requested, as those of
    /// several streams or engines of a GPU do. The copies of one event stay in the order of their
    /// requests. A copy waits until there are others, or somebody waits for one or asks often; then
    /// the device chooses one by a sequence of pseudo-random numbers, which `seed` repeats.
    ///
    /// # Panics
    /// If the kernel starts no thread.
    #[must_use]
    pub fn reordering(seed: u64) -> SimulatedDevice {
        SimulatedDevice::with_order(CopyOrder::Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    fn with_order(order: CopyOrder) -> SimulatedDevice {
        let shared = Arc::new(SharedDevice::default());
        let (messages, queue) = mpsc::channel();
        let of_thread = shared.clone();
        std::thread::spawn(move || serve(&of_thread, &queue, order));
        SimulatedDevice { shared, messages, is_reordering: order != CopyOrder::Requested }
    }

    /// Lets copy `number`, counted from 1, meet a fault.
    pub fn fault(&self, number: u64, fault: Fault) {
        self.shared.state.lock().ignore_poison().faults.insert(number, fault);
    }

    /// Returns the number of copies that were requested. Rows of one request are one copy.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.shared.requested.load(Ordering::Relaxed)
    }

    /// Returns the number of copies that have ended before one that was requested earlier.
    #[must_use]
    pub fn reordered(&self) -> u64 {
        self.shared.reordered.load(Ordering::Relaxed)
    }

    /// Ends a [`Fault::Hang`].
    pub fn resume(&self) {
        self.shared.state.lock().ignore_poison().is_hanging = false;
        self.shared.changed.notify_all();
    }

    /// Returns whether the device is in a [`Fault::Hang`].
    #[must_use]
    pub fn is_hanging(&self) -> bool {
        self.shared.state.lock().ignore_poison().is_hanging
    }

    /// Returns whether a thread waits for a copy.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.shared.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns the number of a copy that is being requested, and its fault.
    pub(super) fn next_copy(&self) -> (u64, Option<Fault>) {
        let number = self.shared.requested.fetch_add(1, Ordering::Relaxed) + 1;
        (number, self.shared.state.lock().ignore_poison().faults.remove(&number))
    }

    pub(super) fn is_lost(&self) -> bool {
        self.shared.state.lock().ignore_poison().is_lost
    }

    /// Does a copy, or what its fault says. Returns whether the bytes were copied.
    ///
    /// # Safety
    /// As for [`CopyDevice::copy_to_device`], in both directions.
    pub(super) unsafe fn copy(
        &self,
        direction: CopyDirection,
        rows: &DeviceRows,
        fault: Option<Fault>,
    ) -> bool {
        // SAFETY: the caller guarantees both ranges.
        unsafe { self.shared.copy(direction, rows, fault) }
    }

    pub(super) fn error(&self, doing: &str, why: &str) -> DeviceError {
        DeviceError::refused(self.name(), doing, why)
    }

    fn request_all(
        &self,
        direction: CopyDirection,
        copies: impl Iterator<Item = DeviceRows>,
        event: &SimulatedEvent,
    ) -> Result<(), DeviceError> {
        {
            // A failure is that of all copies that the event records. The first ones may have ended
            // before the last ones are requested.
            let mut state = event.0.lock().ignore_poison();
            state.has_failed &= state.recorded != state.ended;
        }
        let mut has_started = false;
        for rows in copies {
            let requested = self.request(direction, rows, event);
            requested.map_err(|error| if has_started { error.started() } else { error })?;
            has_started = true;
        }
        Ok(())
    }

    fn request(
        &self,
        direction: CopyDirection,
        rows: DeviceRows,
        event: &SimulatedEvent,
    ) -> Result<(), DeviceError> {
        let (number, fault) = self.next_copy();
        if self.is_lost() {
            return Err(self.error("starting a copy", "the device is lost").lost());
        }
        if fault == Some(Fault::Refuse) {
            return Err(self.error("starting a copy", "refused"));
        }
        event.0.lock().ignore_poison().recorded = number;
        let request = Request { rows, direction, number, fault, event: event.clone() };
        let sent = self.messages.send(Message::Copy(request));
        sent.map_err(|_| self.error("starting a copy", "its thread has ended").lost())
    }

    /// Lets a device that reorders do a copy, since a thread waits for one.
    fn hurry(&self) {
        if self.is_reordering {
            // Without its thread, the device is lost.
            let _ = self.messages.send(Message::Waiting);
        }
    }
}

impl SharedDevice {
    /// Does a copy, and notifies the threads that wait for it. Returns whether the bytes were
    /// copied.
    fn serve(&self, Request { rows, direction, number, fault, event }: Request) -> bool {
        // SAFETY: the caller of the device guarantees both ranges.
        let has_copied = unsafe { self.copy(direction, &rows, fault) };
        if self.state.lock().ignore_poison().is_lost {
            self.changed.notify_all();
            return false;
        }
        {
            let mut state = event.0.lock().ignore_poison();
            state.ended = number;
            state.has_failed |= !has_copied;
        }
        // A thread that waits looks at the events with this lock.
        drop(self.state.lock().ignore_poison());
        self.changed.notify_all();
        has_copied
    }

    /// Does a copy, or what its fault says. Returns whether the bytes were copied.
    ///
    /// # Safety
    /// As for [`CopyDevice::copy_to_device`], in both directions.
    unsafe fn copy(&self, direction: CopyDirection, rows: &DeviceRows, fault: Option<Fault>) -> bool {
        match fault {
            Some(Fault::Delay(time)) => std::thread::sleep(time),
            Some(Fault::Hang) => {
                let mut state = self.state.lock().ignore_poison();
                state.is_hanging = true;
                while state.is_hanging {
                    state = self.changed.wait(state).ignore_poison();
                }
            }
            Some(Fault::Lose) => self.state.lock().ignore_poison().is_lost = true,
            _ => {}
        }
        if self.state.lock().ignore_poison().is_lost || matches!(fault, Some(Fault::Fail | Fault::Refuse)) {
            return false;
        }
        for DeviceCopy { host, bytes, address } in rows.copies() {
            let (from, to) = match direction {
                CopyDirection::ToDevice => (host.cast_const(), address as *mut u8),
                CopyDirection::ToHost => (address as *const u8, host),
            };
            // SAFETY: the caller guarantees both ranges.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
        true
    }
}

/// Does the copies.
fn serve(shared: &SharedDevice, queue: &mpsc::Receiver<Message>, order: CopyOrder) {
    let mut pending = PendingCopies::new(order);
    loop {
        let next = match queue.recv() {
            Ok(Message::Copy(request)) => {
                pending.push(request);
                pending.next()
            }
            Ok(Message::Waiting) => pending.take(),
            // All that was requested is done, although the program has dropped the device.
            Err(_) => match pending.take() {
                None => return,
                next => next,
            },
        };
        let Some(request) = next else { continue };
        let is_first = !pending.have_before(request.number);
        if shared.serve(request) && !is_first {
            shared.reordered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl CopyDevice for SimulatedDevice {
    type Event = SimulatedEvent;

    fn name(&self) -> String {
        "a simulated device".into()
    }

    fn new_event(&self) -> Result<SimulatedEvent, DeviceError> {
        Ok(SimulatedEvent(Arc::default()))
    }

    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], done: &SimulatedEvent) -> Result<(), DeviceError> {
        let copies = copies.iter().map(|&copy| copy.into());
        self.request_all(CopyDirection::ToDevice, copies, done)
    }

    unsafe fn copy_rows_to_device(
        &self,
        rows: &[DeviceRows],
        done: &SimulatedEvent,
    ) -> Result<(), DeviceError> {
        self.request_all(CopyDirection::ToDevice, rows.iter().copied(), done)
    }

    unsafe fn copy_to_host(&self, copies: &[DeviceCopy], done: &SimulatedEvent) -> Result<(), DeviceError> {
        let copies = copies.iter().map(|&copy| copy.into());
        self.request_all(CopyDirection::ToHost, copies, done)
    }

    fn is_complete(&self, event: &SimulatedEvent) -> Result<bool, DeviceError> {
        if self.shared.state.lock().ignore_poison().is_lost {
            return Err(self.error("copying", "the device is lost").lost());
        }
        let state = event.0.lock().ignore_poison();
        match state.recorded == state.ended {
            true if state.has_failed => Err(self.error("copying", "failed")),
            true => Ok(true),
            false => {
                if self.shared.asked.fetch_add(1, Ordering::Relaxed) % QUESTIONS == QUESTIONS - 1 {
                    self.hurry();
                }
                Ok(false)
            }
        }
    }

    fn wait(&self, event: &SimulatedEvent) -> Result<(), DeviceError> {
        loop {
            let state = self.shared.state.lock().ignore_poison();
            let is_lost = state.is_lost;
            let is_complete = {
                let event = event.0.lock().ignore_poison();
                event.recorded == event.ended
            };
            if is_lost || is_complete {
                drop(state);
                return self.is_complete(event).map(drop);
            }
            self.hurry();
            self.shared.waiting.fetch_add(1, Ordering::SeqCst);
            drop(self.shared.changed.wait(state).ignore_poison());
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Memory of a simulated device.
#[derive(Debug)]
pub struct SimulatedMemory(HostMemory);

impl SimulatedMemory {
    /// Allocates `bytes` of zeros.
    ///
    /// # Panics
    /// If `bytes` is 0.
    #[must_use]
    pub fn new(bytes: usize) -> SimulatedMemory {
        SimulatedMemory(HostMemory::new(bytes))
    }

    /// Returns a copy of the content. No transfer uses the memory meanwhile.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        let address: NonNull<u8> = self.0.address();
        // SAFETY: allocated with this length, and the caller has ended all transfers.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), self.0.bytes()) }.to_vec()
    }

    /// Sets the content. No transfer uses the memory meanwhile.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn fill(&self, content: &[u8]) {
        assert_eq!(content.len(), self.0.bytes(), "a content has the length of the memory");
        // SAFETY: as above.
        unsafe { self.0.address().as_ptr().copy_from_nonoverlapping(content.as_ptr(), content.len()) };
    }
}

// SAFETY: the memory stays as long as the object.
unsafe impl DeviceBuffer for SimulatedMemory {
    fn address(&self) -> u64 {
        self.0.address().as_ptr() as u64
    }

    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }
}
