//! A ring between the host and one device.

#![allow(unsafe_code, reason = "divides the memory of a ring into slots")]

use std::mem::take;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{fmt, io};

use super::host_memory::{ALIGNMENT, RingMemory};
use super::ring_core::RingCore;
use super::ring_counters::RingCounters;
use super::ring_options::{InvalidRing, RingOptions};
use super::ring_slot::RingSlot;
use super::worker;
use crate::device::{CopyDevice, DeviceError, DeviceTarget};
use crate::read_write_at::{ReadAt, WriteAt};
use crate::transfer::{ChunkPlan, HostSide, Transfer, TransferError, TransferState};

/// A ring between the host and one device: slots of host memory that threads fill in pieces, and
/// that the device copies whole. Transfers in both directions may be on their way at the same time.
///
/// A slot that the device copies is waited for only when no other slot is free. Per slot there is
/// no allocation, no lock, and no system call but the reads, the copy, and the question whether it
/// has ended. A ring without transfers takes no CPU time.
///
/// Dropping the ring cancels its transfers, and waits until the device accesses none of its memory.
/// In a forked child it does nothing, and transfers are [`TransferError::Forked`].
pub struct Ring<D: CopyDevice> {
    core: Arc<RingCore<D>>,
    threads: Vec<JoinHandle<()>>,
    options: RingOptions,
    /// The process that has made the ring.
    process: u32,
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
        let slot = |number: usize| {
            // SAFETY: within the memory.
            let memory = unsafe { start.add(number * options.slot_bytes) };
            // SAFETY: the memory belongs to the ring, which drops it after the slots.
            device.new_event().map(|event| unsafe { RingSlot::new(memory, options.slot_bytes, event) })
        };
        let slots = (0..options.slots).map(slot).collect::<Result<Box<[_]>, _>>()?;
        let core = Arc::new(RingCore::new(device, slots, Box::new(memory)));
        let threads = worker::start(&core, options.workers).map_err(RingError::Threads)?;
        Ok(Ring { core, threads, options, process: std::process::id() })
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

    /// Returns the counts.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        self.core.counters.get()
    }

    /// Starts to read the bytes of `source` from `offset` on into memory of the device, whose
    /// length is that of the transfer. On failure the rest of that memory has any content.
    pub fn read(&self, source: Arc<dyn ReadAt>, offset: u64, to: DeviceTarget) -> Transfer {
        let alignment = source.alignment();
        self.start(HostSide::Source(source), (offset, alignment), to)
    }

    /// Starts to write memory of the device to `sink` from `offset` on. The bytes are written in
    /// any order, and nothing makes them durable.
    pub fn write(&self, from: DeviceTarget, sink: Arc<dyn WriteAt>, offset: u64) -> Transfer {
        let alignment = sink.alignment();
        self.start(HostSide::Sink(sink), (offset, alignment), from)
    }

    fn start(&self, endpoint: HostSide, (offset, alignment): (u64, u64), target: DeviceTarget) -> Transfer {
        let RingOptions { slot_bytes, piece_bytes, .. } = self.options;
        let plan = ChunkPlan::new((offset, target.bytes()), alignment, slot_bytes, piece_bytes);
        let state = Arc::new(TransferState::new(endpoint, target, plan));
        if self.process == std::process::id() {
            self.core.start(state.clone());
        } else {
            state.stop(TransferError::Forked);
        }
        Transfer::new(state)
    }
}

impl<D: CopyDevice> Drop for Ring<D> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
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

/// The reason why there is no ring.
#[derive(Debug)]
#[non_exhaustive]
pub enum RingError {
    /// An option is invalid.
    Invalid(InvalidRing),
    /// The memory has too few bytes, or does not begin at a multiple of 4096.
    Memory {
        /// The number of bytes that the slots need.
        needed: usize,
        /// The number of bytes that there are.
        bytes: usize,
        /// The address of the first byte.
        address: usize,
    },
    /// The device makes no event.
    Device(DeviceError),
    /// The kernel starts no thread.
    Threads(io::Error),
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Invalid(error) => error.fmt(f),
            RingError::Memory { needed, bytes, address } => write!(
                f,
                "invalid memory of {bytes} bytes at {address:#x} for a ring: its slots need {needed} bytes from a multiple of \
                 {ALIGNMENT} on"
            ),
            RingError::Device(error) => error.fmt(f),
            RingError::Threads(error) => {
                write!(f, "starting the threads of a ring (raise ulimit -u): {error}")
            }
        }
    }
}

impl std::error::Error for RingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RingError::Invalid(error) => Some(error),
            RingError::Memory { .. } => None,
            RingError::Device(error) => Some(error),
            RingError::Threads(error) => Some(error),
        }
    }
}

impl From<InvalidRing> for RingError {
    fn from(error: InvalidRing) -> RingError {
        RingError::Invalid(error)
    }
}

impl From<DeviceError> for RingError {
    fn from(error: DeviceError) -> RingError {
        RingError::Device(error)
    }
}
