//! The steps of a ring on the side of the device: copies start and end, and are waited for.

#![allow(unsafe_code, reason = "devices access memory that the states of slots guard")]

use std::sync::atomic::Ordering;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use super::device_wait::Begun;
use super::ring_core::RingCore;
use super::ring_slot::{RingSlot, SlotRecord};
use crate::counters::{COPYING, PageWord};
use crate::device::{CopyDevice, DeviceCopy, DeviceError, StreamCopies};
use crate::profiler_range::{ProfilerRange, ThreadRange};
use crate::range_name::RangeName;
use crate::slot_word::OwnedSlot;
use crate::transfer::{HostSide, PiecePart};

/// The largest number of copies that one call starts.
const COPIES: usize = 64;

/// The time for which a thread polls the copies of streams. A copy of 8 MiB takes 170 µs.
const POLLING: Duration = Duration::from_micros(200);
/// The time for which it sleeps then.
const BETWEEN_POLLS: Duration = Duration::from_micros(100);
/// The number of such polls, after which the driver is asked for the copies of the ring's own
/// stream. That wakes all threads.
const ASKING: usize = 4;
/// The number of polls after which the device is asked whether it is lost: about a second.
const CHECKING: usize = 4096;

/// The result of a wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// There may be work now.
    Again,
    /// Another thread waits, and notifies the others afterwards.
    Beside,
    /// The device has no copy to wait for.
    NoCopy,
}

impl<D: CopyDevice> RingCore<D> {
    /// Lets the device copy a slot.
    pub(super) fn start_copy(&self, slot: &RingSlot<D::Event>, mut owned: OwnedSlot<'_>) {
        let SlotRecord { transfer, number } = slot.record(&owned);
        self.stop_if_over(transfer);
        if transfer.is_stopped() {
            transfer.skip();
            return self.free(slot, owned);
        }
        let name = match &transfer.endpoint {
            HostSide::Source(_) => RangeName::CopyToDevice,
            HostSide::Sink(_) => RangeName::CopyToHost,
        };
        let bytes = || transfer.plan.copies(*number).map(|part| part.bytes() as u64).sum();
        let range = ProfilerRange::of_bytes(name, bytes);
        slot.set_copy_range(&mut owned, Some(range));
        slot.set_copied(&owned, self.started.fetch_add(1, Ordering::Relaxed));
        self.counters.begin(COPYING);
        match self.start_copies(slot, &owned) {
            Ok(()) => owned.start_copy(),
            Err((first, error)) => self.fail_copy(slot, owned, first, error),
        }
    }

    /// Starts the copies of a slot.
    ///
    /// # Errors
    /// The device's, with the first of the copies that one call has failed to start.
    fn start_copies(
        &self,
        slot: &RingSlot<D::Event>,
        owned: &OwnedSlot<'_>,
    ) -> Result<(), (Option<PiecePart>, DeviceError)> {
        let SlotRecord { transfer, number } = slot.record(owned);
        if let Some(copies) = transfer.stream_copies() {
            self.start_stream_copies(slot, owned, copies);
            return Ok(());
        }
        let mut has_started = false;
        let mut planned = transfer.plan.copies(*number);
        loop {
            let mut copies = [DeviceCopy::default(); COPIES];
            let (mut count, mut first) = (0, None);
            for (copy, part) in copies.iter_mut().zip(&mut planned) {
                let host = slot.copied_memory(owned, part.memory.clone()).cast();
                *copy = DeviceCopy { host, bytes: part.bytes(), address: part.address };
                count += 1;
                first.get_or_insert(part);
            }
            let copies = &copies[..count];
            if copies.is_empty() {
                return Ok(());
            }
            let (started, counter) = match &transfer.endpoint {
                HostSide::Source(_) => {
                    // SAFETY: nobody accesses the slot before the event is complete, and the record
                    // keeps the memory of the device.
                    (unsafe { self.device.copy_to_device(copies, &slot.event) }, PageWord::ToDevice)
                }
                HostSide::Sink(_) => {
                    // SAFETY: as above.
                    (unsafe { self.device.copy_to_host(copies, &slot.event) }, PageWord::FromDevice)
                }
            };
            // The event is recorded after the copies of the calls before.
            started.map_err(|error| (first, if has_started { error.started() } else { error }))?;
            has_started = true;
            self.counters.add(PageWord::Copies, count as u64);
            let bytes: usize = copies.iter().map(|copy| copy.bytes).sum();
            self.counters.add(counter, bytes as u64);
        }
    }

    /// Lets the stream in whose order a transfer is copy a slot.
    fn start_stream_copies(
        &self,
        slot: &RingSlot<D::Event>,
        owned: &OwnedSlot<'_>,
        copies: &dyn StreamCopies,
    ) {
        let SlotRecord { transfer, number } = slot.record(owned);
        let counter = match &transfer.endpoint {
            HostSide::Source(_) => PageWord::ToDevice,
            HostSide::Sink(_) => PageWord::FromDevice,
        };
        for part in transfer.plan.copies(*number) {
            let host = slot.copied_memory(owned, part.memory.clone()).cast();
            let copy = DeviceCopy { host, bytes: part.bytes(), address: part.address };
            // Before the copy, with which the transfer may end.
            self.counters.add(PageWord::Copies, 1);
            self.counters.add(counter, copy.bytes as u64);
            // SAFETY: nobody accesses the slot before its last copy has ended, and the record keeps
            // the memory of the device. The stream has a copy for each part of the plan.
            slot.set_stream_copy(owned, unsafe { copies.start(&copy) });
        }
    }

    /// Returns whether a slot is copied.
    fn is_copied(&self, slot: &RingSlot<D::Event>, owned: &OwnedSlot<'_>) -> Result<bool, DeviceError> {
        match slot.record(owned).transfer.stream_copies() {
            None if self.held.are_pending() => {
                let ask = || self.device.is_complete(&slot.event);
                self.held.ask(ask).unwrap_or(Ok(false))
            }
            None => self.device.is_complete(&slot.event),
            Some(copies) if copies.has_ended(slot.stream_copy())? => Ok(true),
            // The driver is not asked: a thread may have its lock, and wait for this stream.
            Some(_) => Ok(false),
        }
    }

    /// Returns whether the ring's own stream copies a slot.
    fn is_copied_by_ring(&self, slot: &RingSlot<D::Event>) -> bool {
        let Some(owned) = slot.state.poll() else { return false };
        let is_held = slot.record(&owned).transfer.stream_copies().is_some();
        owned.start_copy();
        !is_held
    }

    /// Asks the device whether it has copied a slot, and goes on with one that it has.
    pub(super) fn end_copy(&self) -> bool {
        self.slots.iter().any(|slot| self.end_copy_of(slot) == Some(true))
    }

    /// Asks the device whether it has copied a slot, and goes on with the slot if it has. Returns
    /// `None` if the device does not copy it, or another thread asks.
    pub(super) fn end_copy_of(&self, slot: &RingSlot<D::Event>) -> Option<bool> {
        let owned = slot.state.poll()?;
        match self.is_copied(slot, &owned) {
            Ok(false) => {
                owned.start_copy();
                return Some(false);
            }
            complete => self.copied(slot, owned, complete.map(drop)),
        }
        Some(true)
    }

    /// Waits for the oldest copy of the device, unless there is none or another thread waits for
    /// it. `epoch` is the one before the calling thread has looked for work.
    pub(super) fn wait_for_device(&self, epoch: u64) -> Waited {
        if self.held.are_pending() {
            // A copy may be queued after work of a stream that waits for another slot.
            return self.wait_for_streams(epoch);
        }
        match self.device_wait.begin() {
            Begun::Alone => {}
            // That thread may find no copy, since this one was asking about it.
            Begun::BesideSearch => return Waited::Again,
            Begun::BesideWait => return Waited::Beside,
        }
        let copying = self.slots.iter().filter(|slot| slot.state.is_copying());
        let oldest = copying.min_by_key(|slot| slot.copied());
        let taken = oldest.and_then(|slot| Some((slot, slot.state.poll()?)));
        let Some((slot, owned)) = taken else {
            self.device_wait.end();
            // Another thread has taken it, and looks for work after that.
            return Waited::NoCopy;
        };
        self.device_wait.found();
        let range = ThreadRange::new(RangeName::WaitForDevice);
        let waited = self.counters.time(PageWord::WaitingForDevice, || self.device.wait(&slot.event));
        drop(range);
        self.device_wait.end();
        self.copied(slot, owned, waited);
        // The threads that sleep may wait for the next copy.
        self.signal.notify();
        Waited::Again
    }

    /// Polls the copies of streams, unless there is no copy or another thread polls. A thread that
    /// has begun to wait for the device before a stream waited may do so meanwhile.
    fn wait_for_streams(&self, epoch: u64) -> Waited {
        let polling = &self.held.polling;
        match polling.begin() {
            Begun::Alone => {}
            // That thread may find no copy, since this one has begun one meanwhile.
            Begun::BesideSearch => return Waited::Again,
            Begun::BesideWait => return Waited::Beside,
        }
        if !self.slots.iter().any(|slot| slot.state.is_copying()) {
            polling.end();
            return Waited::NoCopy;
        }
        polling.found();
        let range = ThreadRange::new(RangeName::WaitForDevice);
        let poll = || self.poll_stream_copies(epoch);
        let has_work = self.counters.time(PageWord::WaitingForDevice, poll);
        drop(range);
        polling.end();
        let polls = self.held.count_poll();
        let asks =
            || polls.is_multiple_of(ASKING) && self.slots.iter().any(|slot| self.is_copied_by_ring(slot));
        let is_check_due = polls.is_multiple_of(CHECKING);
        // Another thread polls while this one asks the driver, or reads or writes.
        if has_work || is_check_due || asks() {
            self.signal.notify();
        }
        if is_check_due {
            self.check_device();
        }
        Waited::Again
    }

    /// Polls the copies of streams for a short time, and then sleeps for a short time. Returns
    /// whether there may be work now. It calls no driver, so it never waits for a stream.
    fn poll_stream_copies(&self, epoch: u64) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < POLLING {
            if self.slots.iter().any(|slot| self.end_stream_copy_of(slot)) {
                return true;
            }
            yield_now();
        }
        self.signal.wait_at_most(epoch, BETWEEN_POLLS);
        self.signal.epoch() != epoch
    }

    /// Goes on with a slot that a stream has copied.
    fn end_stream_copy_of(&self, slot: &RingSlot<D::Event>) -> bool {
        let Some(owned) = slot.state.poll() else { return false };
        let is_held = slot.record(&owned).transfer.stream_copies().is_some();
        let copied = if is_held { self.is_copied(slot, &owned) } else { Ok(false) };
        if matches!(copied, Ok(false)) {
            owned.start_copy();
            return false;
        }
        self.copied(slot, owned, copied.map(drop));
        true
    }

    /// Asks the device whether it is lost, in the threads of the ring, and goes on with the slots
    /// that streams copy if it is: somebody may have destroyed the context, and its streams state
    /// nothing then. The call may wait for a thread that waits for a stream, so another thread of
    /// the ring must go on meanwhile, unless the ring ends.
    fn check_device(&self) {
        if self.workers == 1 && self.is_usable() {
            return;
        }
        let Some(Err(error)) = self.held.ask(|| self.ask_whether_lost()) else { return };
        for slot in &self.slots {
            let Some(owned) = slot.state.poll() else { continue };
            match slot.record(&owned).transfer.stream_copies() {
                Some(_) => self.copied(slot, owned, Err(error.clone())),
                None => owned.start_copy(),
            }
        }
    }

    /// Asks the device whether it is lost.
    ///
    /// # Errors
    /// [`DeviceError`] of a lost device.
    pub(super) fn ask_whether_lost(&self) -> Result<(), DeviceError> {
        match self.device.is_complete(&self.slots[0].event) {
            Err(error) if error.is_lost() => Err(error),
            // The result of the copy does not matter.
            _ => Ok(()),
        }
    }

    /// Goes on with a slot that the device has copied, or has failed to copy.
    fn copied(&self, slot: &RingSlot<D::Event>, mut owned: OwnedSlot<'_>, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            let SlotRecord { transfer, number } = slot.record(&owned);
            // The event is that of all copies of the slot.
            let first = transfer.plan.first_part(*number);
            return self.fail_copy(slot, owned, first, error);
        }
        slot.set_copy_range(&mut owned, None);
        self.counters.end(COPYING);
        let SlotRecord { transfer, number } = slot.record(&owned);
        match &transfer.endpoint {
            HostSide::Source(_) => {
                transfer.land(*number);
                self.free(slot, owned);
            }
            HostSide::Sink(_) if transfer.is_stopped() => {
                transfer.skip();
                self.free(slot, owned);
            }
            HostSide::Sink(_) => {
                let pieces = transfer.plan.pieces(*number);
                self.offer(owned, pieces);
            }
        }
    }

    /// Stops the transfer of a slot that the device has failed to copy, from `first` on.
    fn fail_copy(
        &self,
        slot: &RingSlot<D::Event>,
        mut owned: OwnedSlot<'_>,
        first: Option<PiecePart>,
        error: DeviceError,
    ) {
        slot.set_copy_range(&mut owned, None);
        self.counters.end(COPYING);
        let SlotRecord { transfer, .. } = slot.record(&owned);
        transfer.stop_by_device(first, error.clone());
        // A copy that was started and then reported as failed may still be in flight.
        let is_lost = error.is_lost()
            || error.has_started()
                && self.device.wait(&slot.event).err().is_some_and(|error| error.is_lost());
        transfer.skip();
        if !is_lost {
            return self.free(slot, owned);
        }
        // The device may access this memory, and that of the record, for ever.
        let _ = self.lost.set(error.lost());
        self.abandoned.fetch_add(1, Ordering::SeqCst);
        for transfer in self.queue.take_all().into_iter().chain(self.after_streams.take_all()) {
            self.stop_if_over(&transfer);
        }
        self.signal.notify();
    }
}
