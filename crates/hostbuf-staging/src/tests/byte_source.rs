//! Sources and sinks in memory, which misbehave on request.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::{DeviceTarget, HostMemory, ReadAt, Ring, RingOptions, SimulatedDevice, SimulatedMemory, WriteAt};

/// The sizes of the rings of these tests.
pub(super) const SLOT: usize = 64 << 10;
pub(super) const PIECE: usize = 16 << 10;

/// Makes a ring of `slots` slots of 64 KiB in pieces of 16 KiB.
pub(super) fn ring(device: SimulatedDevice, slots: usize, workers: usize) -> Ring<SimulatedDevice> {
    let options = RingOptions::new().slots(slots).slot_bytes(SLOT).piece_bytes(PIECE).workers(workers);
    Ring::new(device, options, HostMemory::new(slots * SLOT)).expect("the options are valid")
}

/// Makes a device: one that reorders if there is a seed.
pub(super) fn device(seed: Option<u64>) -> SimulatedDevice {
    seed.map_or_else(SimulatedDevice::new, SimulatedDevice::reordering)
}

/// Makes memory of the device, and a target of all of it.
pub(super) fn target(bytes: usize) -> (Arc<SimulatedMemory>, DeviceTarget) {
    let memory = Arc::new(SimulatedMemory::new(bytes));
    (memory.clone(), DeviceTarget::new(memory))
}

/// Returns bytes that differ from one place to the next.
pub(super) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// An action of a source instead of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFault {
    /// The read fails.
    Fail,
    /// The source states more bytes than there is room for.
    Lie,
    /// The read does not end before [`ByteSource::resume`].
    Stall,
}

/// A source in memory.
#[derive(Debug, Default)]
pub(super) struct ByteSource {
    content: Vec<u8>,
    alignment: u64,
    /// The largest number of bytes of one read.
    most: Option<usize>,
    /// The number of the read that misbehaves, counted from 1.
    fault: Option<(u64, ReadFault)>,
    reads: AtomicU64,
    stalled: Mutex<u32>,
    changed: Condvar,
}

impl ByteSource {
    pub(super) fn new(content: Vec<u8>) -> ByteSource {
        ByteSource { content, alignment: 1, ..ByteSource::default() }
    }

    /// Lets reads return at most `bytes`.
    pub(super) fn most(mut self, bytes: usize) -> ByteSource {
        self.most = Some(bytes);
        self
    }

    /// Checks that reads are aligned.
    pub(super) fn aligned(mut self, alignment: u64) -> ByteSource {
        self.alignment = alignment;
        self
    }

    /// Lets read `number` misbehave.
    pub(super) fn fault(mut self, number: u64, fault: ReadFault) -> ByteSource {
        self.fault = Some((number, fault));
        self
    }

    /// Waits until a read stalls.
    pub(super) fn wait_stalled(&self) {
        let mut stalled = self.stalled.lock().expect("no panic");
        while *stalled != 1 {
            stalled = self.changed.wait(stalled).expect("no panic");
        }
    }

    /// Ends the stall.
    pub(super) fn resume(&self) {
        *self.stalled.lock().expect("no panic") = 2;
        self.changed.notify_all();
    }

    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl ReadAt for ByteSource {
    fn name(&self) -> String {
        "bytes".into()
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        match self.fault.filter(|(of, _)| *of == number).map(|(_, fault)| fault) {
            Some(ReadFault::Fail) => return Err(io::Error::other("the disk is broken")),
            Some(ReadFault::Lie) => return Ok(into.len() + 1),
            Some(ReadFault::Stall) => {
                let mut stalled = self.stalled.lock().expect("no panic");
                *stalled = 1;
                self.changed.notify_all();
                while *stalled != 2 {
                    stalled = self.changed.wait(stalled).expect("no panic");
                }
            }
            None => {}
        }
        if self.alignment > 1 {
            assert_eq!((offset % self.alignment, into.len() as u64 % self.alignment), (0, 0));
            assert_eq!(into.as_ptr() as u64 % self.alignment, 0);
        }
        let rest = self.content.get(offset as usize..).unwrap_or_default();
        let bytes = rest.len().min(into.len()).min(self.most.unwrap_or(usize::MAX));
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }
}

/// A sink in memory.
#[derive(Debug)]
pub(super) struct ByteSink {
    pub(super) content: Mutex<Vec<u8>>,
    /// The largest number of bytes of one write.
    pub(super) most: usize,
    /// The offset from which on writes fail.
    pub(super) full_at: u64,
}

impl ByteSink {
    pub(super) fn new(bytes: usize) -> ByteSink {
        ByteSink { content: Mutex::new(vec![0; bytes]), most: usize::MAX, full_at: u64::MAX }
    }

    pub(super) fn content(&self) -> Vec<u8> {
        self.content.lock().expect("no panic").clone()
    }
}

impl WriteAt for ByteSink {
    fn name(&self) -> String {
        "bytes".into()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let bytes = from.len().min(self.most).min(self.full_at.saturating_sub(offset) as usize);
        if bytes == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let start = offset as usize;
        self.content.lock().expect("no panic")[start..start + bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }
}
