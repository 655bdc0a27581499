//! A ring ends before its memory is frozen.

#![allow(unsafe_code, reason = "declares memory of the test as an own range")]

use std::sync::{Arc, Weak};

use hostbuf_register::Span;
use hostbuf_register::own_ranges::{self, Freezing};

use super::byte_source::{ByteSource, PIECE, ReadFault, SLOT, pattern, target};
use super::short_reads::CountingSource;
use crate::{BorrowedMemory, HostMemory, Ring, RingMemory, RingOptions, SimulatedDevice, TransferError};

/// Makes a ring in borrowed memory, and returns the memory.
fn ring_in_own_range() -> (Ring<SimulatedDevice>, Arc<HostMemory>) {
    let options = RingOptions::new().slots(2).slot_bytes(SLOT).piece_bytes(PIECE).workers(2);
    let memory = Arc::new(HostMemory::new(2 * SLOT));
    // SAFETY: the keeper owns the memory, and only the ring accesses it.
    let borrowed = unsafe { BorrowedMemory::new(memory.address(), memory.bytes(), memory.clone()) };
    (Ring::new(SimulatedDevice::new(), options, borrowed).expect("the options are valid"), memory)
}

#[test]
fn a_ring_ends_before_its_memory_is_frozen() {
    let (ring, memory) = ring_in_own_range();
    let span = Span::new(memory.address().as_ptr() as usize, memory.bytes()).unwrap();
    let keeper: Weak<HostMemory> = Arc::downgrade(&memory);
    // SAFETY: the memory stays until the keeper is dropped.
    let _own = unsafe { own_ranges::declare(span, keeper) };
    let content = pattern(10 * SLOT, 1);
    let stalling = Arc::new(ByteSource::new(content.clone()).fault(9, ReadFault::Stall));
    let (_on_device, to) = target(content.len());
    let transfer = ring.read(stalling.clone(), 0, to.clone());
    stalling.wait_stalled();
    std::thread::scope(|scope| {
        let freezing = scope.spawn(|| Freezing::begin(span).map(Freezing::keep));
        // The read is in flight, so the memory is still in use.
        while ring.is_usable() {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&memory), 2);
        stalling.resume();
        freezing.join().unwrap().unwrap();
    });
    assert_eq!(Arc::strong_count(&memory), 1, "the ring has given its memory back");
    assert!(matches!(transfer.wait(), Err(TransferError::Cancelled { .. })));
    let later = ring.read(Arc::new(ByteSource::new(content)), 0, to).wait();
    assert!(matches!(later, Err(TransferError::Cancelled { landed: 0 })));
}

#[test]
fn a_ring_elsewhere_goes_on() {
    let (ring, _memory) = ring_in_own_range();
    let other = Arc::new(HostMemory::new(SLOT));
    let span = Span::new(other.address().as_ptr() as usize, SLOT).unwrap();
    let keeper: Weak<HostMemory> = Arc::downgrade(&other);
    // SAFETY: the memory stays until the keeper is dropped.
    let _own = unsafe { own_ranges::declare(span, keeper) };
    Freezing::begin(span).unwrap().keep();
    let (memory, to) = target(3 * SLOT);
    ring.read(Arc::new(ByteSource::new(pattern(3 * SLOT, 2))), 0, to).wait().unwrap();
    assert!(memory.content() == pattern(3 * SLOT, 2));
}

/// Short reads are done by the threads that start them, so the ring waits for those threads too.
#[test]
fn a_ring_ends_beside_short_reads() {
    for _ in 0..50 {
        let (ring, memory) = ring_in_own_range();
        let span = Span::new(memory.address().as_ptr() as usize, memory.bytes()).unwrap();
        let keeper: Weak<HostMemory> = Arc::downgrade(&memory);
        // SAFETY: the memory stays until the keeper is dropped.
        let _own = unsafe { own_ranges::declare(span, keeper) };
        let content = pattern(SLOT, 4);
        let read = || {
            let (_on_device, to) = target(100);
            ring.read(Arc::new(CountingSource::new(content.clone(), PIECE)), 0, to).wait()
        };
        read().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let error = loop {
                        match read() {
                            Ok(bytes) => assert_eq!(bytes, 100),
                            Err(error) => break error,
                        }
                    };
                    assert!(matches!(error, TransferError::Cancelled { .. }), "{error}");
                });
            }
            Freezing::begin(span).map(Freezing::keep).unwrap();
        });
        assert_eq!(Arc::strong_count(&memory), 1, "the ring has given its memory back");
    }
}
