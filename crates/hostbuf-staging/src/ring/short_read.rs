//! Short reads in the thread that starts them.

#![allow(unsafe_code, reason = "slots guard memory by their states")]

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::ring_core::RingCore;
use super::ring_life::RingLife;
use super::ring_slot::{RingSlot, SlotRecord};
use crate::counters::PageWord;
use crate::device::CopyDevice;
use crate::read_write_at::ReadAt;
use crate::transfer::{HostSide, TransferState};

/// The largest number of bytes of a short read.
const LONGEST: usize = 64 << 10;
/// The time for which the calling thread asks whether the device has copied the bytes. A copy of 64
/// KiB takes about 10 µs over PCIe 4 or 5.
const PATIENCE: Duration = Duration::from_micros(30);

/// A thread of the program that accesses the memory of a ring.
struct JoinedThread<'l>(&'l RingLife);

impl Drop for JoinedThread<'_> {
    fn drop(&mut self) {
        self.0.end_thread();
    }
}

impl<D: CopyDevice> RingCore<D> {
    /// Does a short read in the calling thread, if the ring has nothing else to do and the source
    /// need not be waited for: waking a thread of the ring, and being woken by it, takes longer
    /// than the read. Returns whether the transfer has begun. It may not have ended: the threads of
    /// the ring end a copy that takes long.
    pub(super) fn read_short(&self, transfer: &Arc<TransferState>) -> bool {
        let HostSide::Source(source) = &transfer.endpoint else { return false };
        let plan = &transfer.plan;
        if D::IS_HOST || plan.bytes() > LONGEST as u64 || plan.chunks() != 1 || plan.pieces(0) != 1 {
            return false;
        }
        let is_idle = !self.has_chunks() && self.slots.iter().all(|slot| slot.state.is_free());
        if !is_idle || !self.life.join() {
            return false;
        }
        let _joined = JoinedThread(&self.life);
        self.device.in_thread_of_program(|| self.read_at_once(transfer, &**source))
    }

    fn read_at_once(&self, transfer: &Arc<TransferState>, source: &dyn ReadAt) -> bool {
        let Some((slot, mut owned)) = self.open_slot() else { return false };
        // Either this thread sees that the ring ends, or the threads of the ring see the slot, and
        // stay until it is free.
        fence(Ordering::SeqCst);
        let planned = transfer.plan.piece(0, 0);
        let is_there = self.is_usable() && planned.memory.len() <= LONGEST && {
            // SAFETY: this thread owns the slot, and the memory stays while it is counted.
            let into = unsafe { &mut *slot.copied_memory(&owned, planned.memory) };
            let room = into.len();
            let read = || source.read_without_waiting(into, planned.file_offset);
            let read = self.counters.time(PageWord::Reading, read);
            // A source may state more bytes than there is room for; `read_at` makes it an error.
            read.is_ok_and(|bytes| (planned.needed..=room).contains(&bytes))
        };
        let begun = if is_there { transfer.begin_chunk() } else { None };
        let Some(number) = begun else {
            owned.free();
            self.notify_of_free_slot();
            return false;
        };
        slot.replace_record(&mut owned, Some(SlotRecord { transfer: transfer.clone(), number }));
        self.start_copy(slot, owned);
        self.end_short_copy(slot);
        true
    }

    /// Ends the copy of a slot, or leaves it to the threads of the ring if it takes long.
    fn end_short_copy(&self, slot: &RingSlot<D::Event>) {
        let begun = Instant::now();
        while self.end_copy_of(slot) == Some(false) {
            if begun.elapsed() > PATIENCE {
                self.signal.notify();
                return;
            }
            spin_loop();
        }
    }
}
