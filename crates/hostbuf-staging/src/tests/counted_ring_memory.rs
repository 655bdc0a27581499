//! Memory of a ring that counts its drops.

#![allow(unsafe_code, reason = "passes the promises of ordinary memory on")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::byte_source::{PIECE, SLOT};
use crate::{HostMemory, Ring, RingMemory, RingOptions, SimulatedDevice};

/// Memory of a ring that counts its drops.
pub(super) struct CountedRingMemory {
    memory: HostMemory,
    drops: Arc<AtomicUsize>,
}

// SAFETY: the memory is that of the field, which is promised.
unsafe impl RingMemory for CountedRingMemory {
    fn address(&self) -> NonNull<u8> {
        self.memory.address()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl Drop for CountedRingMemory {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

/// Makes a ring of three slots and two threads, and returns the number of drops of its memory.
pub(super) fn counted_ring(device: SimulatedDevice) -> (Ring<SimulatedDevice>, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let memory = CountedRingMemory { memory: HostMemory::new(3 * SLOT), drops: drops.clone() };
    let options = RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(PIECE).workers(2);
    (Ring::new(device, options, memory).expect("the options are valid"), drops)
}
