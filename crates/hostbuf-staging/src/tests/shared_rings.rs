//! The rings that a process shares.

use std::sync::Arc;

use hostbuf_register::{Access, Mlock, PinnedAlloc};

use super::byte_source::{ByteSource, PIECE, SLOT, pattern, target};
use crate::{
    BorrowedMemory, DeviceTarget, HostDevice, HostMemory, Ring, RingError, RingOptions, SimulatedDevice,
};

#[test]
fn callers_share_the_ring_of_the_host() {
    let callers: Vec<_> = std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| Ring::of_host().expect("threads"));
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(callers.iter().all(|ring| Arc::ptr_eq(ring, &callers[0]) && ring.is_usable()));
    let first = Arc::downgrade(&callers[0]);
    drop(callers);
    assert_eq!(first.strong_count(), 0, "it ends with its last user");
    assert!(Ring::of_host().expect("threads").is_usable());
}

#[test]
fn a_ring_uses_a_block_of_an_allocator() {
    let allocator = PinnedAlloc::new(Arc::new(Mlock::new()), Access::WRITE, 8 << 20);
    let block = allocator.allocate(4 * SLOT).expect("ulimit -l permits some kilobytes");
    let options = RingOptions::new().slots(4).slot_bytes(SLOT).piece_bytes(PIECE).workers(2);
    let ring = Ring::new(SimulatedDevice::new(), options, BorrowedMemory::from(block)).unwrap();
    let (memory, to) = target(9 * SLOT);
    ring.read(Arc::new(ByteSource::new(pattern(9 * SLOT, 1))), 0, to).wait().unwrap();
    assert!(memory.content() == pattern(9 * SLOT, 1));
    drop(ring);
    // The block of the ring serves again.
    let registered = allocator.registered();
    let again = allocator.allocate(4 * SLOT).expect("it is free");
    assert_eq!(allocator.registered(), registered);
    // Blocks are targets too.
    let host = Ring::for_host(options).unwrap();
    let to = DeviceTarget::new(Arc::new(BorrowedMemory::from(again)));
    host.read(Arc::new(ByteSource::new(pattern(4 * SLOT, 2))), 0, to.clone()).wait().unwrap();
    let sink = Arc::new(super::byte_source::ByteSink::new(4 * SLOT));
    host.write(to, sink.clone(), 0).wait().unwrap();
    assert!(sink.content() == pattern(4 * SLOT, 2));
}

#[test]
fn too_little_memory_is_refused() {
    let options = RingOptions::new().slots(4).slot_bytes(SLOT).piece_bytes(PIECE).workers(1);
    match Ring::new(HostDevice::new(), options, HostMemory::new(SLOT)) {
        Err(RingError::Memory { needed, bytes, .. }) => assert_eq!((needed, bytes), (4 * SLOT, SLOT)),
        other => panic!("{other:?}"),
    }
}
