//! A ring between the host and one device.

#![allow(unsafe_code, reason = "divides the memory of a ring into slots")]

use std::fmt;
use std::mem::take;
use std::slice;
use std::sync::{Arc, Weak};

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::thread::Thread;
use hostbuf_register::{RingMemory, Span, own_ranges};
use tracing::debug_span;

use super::host_memory::ALIGNMENT;
use super::ring_core::RingCore;
use super::ring_error::RingError;
use super::ring_options::RingOptions;
use super::ring_slot::RingSlot;
use super::worker;
use crate::counters::{CounterPage, RingCounters, RingShape};
use crate::device::{CopyDevice, DeviceTarget};
use crate::read_write_at::{ReadAt, WriteAt};
use crate::transfer::{
    ChunkPlan, GatherPlan, HostSide, PlanSizes, Transfer, TransferError, TransferPart, TransferPlan,
    TransferState,
};

/// A ring between the host and one device: slots of host memory that threads fill in pieces, and
/// that the device copies whole. Transfers in both directions may be in flight at the same time.
///
/// A slot that the device copies is waited for only when no other slot is free. Per slot there is
/// no allocation, no lock, and no system call but the reads, the copy, and the question whether it
/// has ended. Two cases are different: waking a thread of the ring that sleeps takes a lock and a
/// system call, and a slot of a transfer in the order of a stream takes a lock. A ring without
/// transfers takes no CPU time.
///
/// A ring ends when the buffer that contains its memory is frozen: its transfers are cancelled, and
/// the memory is given back first.
///
/// Dropping the ring cancels its transfers, and waits until the device accesses none of its memory.
/// In a forked child it does nothing, and transfers are [`TransferError::Forked`].
pub struct Ring<D: CopyDevice> {
    core: Arc<RingCore<D>>,
    threads: Vec<Thread>,
    options: RingOptions,
    fork_guard: ForkGuard,
}

impl<D: CopyDevice> Ring<D> {
    /// Makes a ring in `memory`, which has at least [`RingOptions::bytes`] bytes.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn new(device: D, options: RingOptions, memory: impl RingMemory) -> Result<Ring<D>, RingError> {
        let needed = options.bytes()?;
        let (start, bytes) = (memory.address(), memory.bytes());
        if bytes < needed || !(start.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return Err(RingError::Memory { needed, bytes, address: start.as_ptr() as usize });
        }
        let RingOptions { slots: count, slot_bytes, piece_bytes, workers } = options;
        let _span =
            debug_span!("ring", device = %device.name(), slots = count, slot_bytes, workers).entered();
        let slot = |number: usize| {
            // SAFETY: within the memory.
            let memory = unsafe { start.add(number * slot_bytes) };
            // SAFETY: the memory belongs to the ring, which drops it after the slots.
            device.new_event().map(|event| unsafe { RingSlot::new(memory, slot_bytes, event) })
        };
        let slots = (0..count).map(slot).collect::<Result<Box<[_]>, _>>()?;
        let shape = RingShape { slots: count, slot_bytes, piece_bytes, workers };
        let counters = CounterPage::new(&device.name(), shape).map_err(RingError::Counters)?;
        let core = Arc::new(RingCore::new(device, slots, counters, (Box::new(memory), workers)));
        let observer: Weak<RingCore<D>> = Arc::downgrade(&core);
        own_ranges::observe(observer);
        // Either this sees that the memory is being frozen, or freezing ends this ring.
        let frozen = |_| RingError::Frozen { bytes, address: start.as_ptr() as usize };
        Span::new(start.as_ptr() as usize, bytes)
            .map_err(hostbuf_register::Error::from)
            .and_then(own_ranges::may_write)
            .map_err(frozen)?;
        let threads = worker::start(&core, workers).map_err(RingError::Threads)?;
        Ok(Ring { core, threads, options, fork_guard: ForkGuard::current() })
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> RingOptions {
        self.options
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.core.device
    }

    /// Returns whether transfers can be started: this process has made the ring, the device is not
    /// lost, and the buffer that contains the memory of the ring, if any, was not frozen.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.fork_guard.is_current() && self.core.is_usable()
    }

    /// Returns the counts.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        RingCounters::of_page(&self.core.counters)
    }

    /// Starts to read the bytes of `source` from `offset` on into memory of the device, whose
    /// length is that of the transfer. On failure the rest of that memory has indeterminate
    /// contents.
    pub fn read(&self, source: Arc<dyn ReadAt>, offset: u64, to: DeviceTarget) -> Transfer {
        let range = TransferPart::new(offset, to);
        self.start(HostSide::Source(source), slice::from_ref(&range), |sizes| Ok(contiguous(&range, sizes)))
    }

    /// Starts to write memory of the device to `sink` from `offset` on. The bytes are written in
    /// any order, and nothing makes them durable. A write that has failed or was cancelled has
    /// written some of the bytes, including some after those that have [landed](Transfer::landed).
    pub fn write(&self, from: DeviceTarget, sink: Arc<dyn WriteAt>, offset: u64) -> Transfer {
        let range = TransferPart::new(offset, from);
        self.start(HostSide::Sink(sink), slice::from_ref(&range), |sizes| Ok(contiguous(&range, sizes)))
    }

    /// Starts to read many ranges of `source`, each into its target, as one transfer. Small ranges
    /// share slots, and ranges that lie near each other are read together. The order of the ranges
    /// does not matter; the bytes [land](Transfer::landed) in the order of their offsets.
    pub fn read_batch(&self, source: Arc<dyn ReadAt>, parts: Vec<TransferPart>) -> Transfer {
        let ranges = parts.clone();
        self.start(HostSide::Source(source), &ranges, |sizes| {
            Ok(TransferPlan::Gathered(GatherPlan::for_reads(parts, sizes)))
        })
    }

    /// Starts to write the target of each part to its range of `sink`, as one transfer. Nothing
    /// between the ranges is written. Ranges that overlap are [`TransferError::Overlap`].
    pub fn write_batch(&self, parts: Vec<TransferPart>, sink: Arc<dyn WriteAt>) -> Transfer {
        let ranges = parts.clone();
        let name = sink.clone();
        self.start(HostSide::Sink(sink), &ranges, |sizes| {
            let overlap = |offset| TransferError::Overlap { name: name.name(), offset };
            GatherPlan::for_writes(parts, sizes).map(TransferPlan::Gathered).map_err(overlap)
        })
    }

    fn start(
        &self,
        endpoint: HostSide,
        ranges: &[TransferPart],
        plan: impl FnOnce(PlanSizes) -> Result<TransferPlan, TransferError>,
    ) -> Transfer {
        let state = self.plan(endpoint, ranges, plan);
        if !state.has_failed() {
            self.core.start(state.clone());
        }
        Transfer::new(state)
    }

    pub(super) fn core(&self) -> &RingCore<D> {
        &self.core
    }

    /// Makes a transfer that has not begun, or one that has failed.
    pub(super) fn plan(
        &self,
        endpoint: HostSide,
        ranges: &[TransferPart],
        plan: impl FnOnce(PlanSizes) -> Result<TransferPlan, TransferError>,
    ) -> Arc<TransferState> {
        let planned = self.check(&endpoint, ranges).and_then(|()| {
            let RingOptions { slot_bytes, piece_bytes, .. } = self.options;
            plan(PlanSizes { alignment: endpoint.alignment(), slot_bytes, piece_bytes })
        });
        let counters = self.core.counters.clone();
        Arc::new(match planned {
            Ok(plan) => TransferState::new(endpoint, plan, counters),
            Err(error) => TransferState::failed(endpoint, error, counters),
        })
    }

    /// Checks the ranges of a transfer.
    fn check(&self, endpoint: &HostSide, ranges: &[TransferPart]) -> Result<(), TransferError> {
        if !self.fork_guard.is_current() {
            return Err(TransferError::Forked);
        }
        for TransferPart { offset, target } in ranges {
            if offset.checked_add(target.bytes()).is_none_or(|end| end > i64::MAX as u64) {
                let (name, offset, bytes) = (endpoint.name(), *offset, target.bytes());
                return Err(TransferError::OutOfRange { name, offset, bytes });
            }
            if D::IS_HOST && !target.is_host_memory() {
                let (device, address) = (self.core.device.name(), target.address());
                return Err(TransferError::OtherDevice { device, address });
            }
        }
        Ok(())
    }
}

/// Plans the transfer of one range.
pub(super) fn contiguous(TransferPart { offset, target }: &TransferPart, sizes: PlanSizes) -> TransferPlan {
    let plan = ChunkPlan::new((*offset, target.bytes()), sizes);
    TransferPlan::Contiguous { plan, target: target.clone() }
}

impl<D: CopyDevice> Drop for Ring<D> {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // The threads are those of the parent, and so is what they use.
            std::mem::forget(self.core.clone());
            std::mem::forget(take(&mut self.threads));
            return;
        }
        self.core.stop();
        worker::join(take(&mut self.threads));
    }
}

impl<D: CopyDevice> fmt::Debug for Ring<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.core.device.name();
        f.debug_struct("Ring")
            .field("device", &device)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
