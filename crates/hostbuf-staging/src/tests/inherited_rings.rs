//! A forked child that uses a ring of its parent, while a transfer of the parent is in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::sys::wait::WaitStatus;

use super::byte_source::{ByteSink, ByteSource, ReadFault, SLOT, pattern, target};
use super::counted_ring_memory::counted_ring;
use super::forked_child::in_forked_child;
use crate::{Ring, SimulatedDevice, SimulatedStream, Transfer, TransferError, TransferPart};

/// Starts a transfer of each kind.
fn transfers(ring: &Ring<SimulatedDevice>, source: &Arc<ByteSource>) -> Vec<Transfer> {
    let (_memory, all) = target(3 * SLOT);
    // It is done in the calling thread.
    let short = all.part(0..100).expect("it is within");
    let parts = vec![TransferPart::new(5, all.clone())];
    let (sink, stream) = (Arc::new(ByteSink::new(4 * SLOT)), SimulatedStream::new());
    vec![
        ring.read(source.clone(), 0, all.clone()),
        ring.read(source.clone(), 0, short),
        ring.write(all.clone(), sink.clone(), 0),
        ring.read_batch(source.clone(), parts.clone()),
        ring.write_batch(parts, sink.clone()),
        ring.read_on(&stream, source.clone(), 0, all.clone()),
        ring.write_on(&stream, all.clone(), sink.clone(), 0),
        ring.read_after(&stream, source.clone(), 0, all.clone()),
        ring.write_after(&stream, all, sink, 0),
    ]
}

#[test]
fn a_child_gets_errors_from_a_ring_of_its_parent_and_drops_nothing_of_it() {
    let content = pattern(10 * SLOT, 1);
    let source = Arc::new(ByteSource::new(content.clone()).fault(9, ReadFault::Stall));
    let (ring, drops) = counted_ring(SimulatedDevice::new());
    let (memory, to) = target(content.len());
    let mut of_parent = Some((ring.read(source.clone(), 0, to), ring));
    source.wait_stalled();
    let status = in_forked_child(|| {
        let (transfer, ring) = of_parent.take().expect("a copy of the parent's");
        let other = Arc::new(ByteSource::new(pattern(4 * SLOT, 2)));
        let requested = ring.device().requested();
        let started = transfers(&ring, &other);
        let are_over = started.iter().all(Transfer::test);
        let are_errors = started.iter().all(|transfer| matches!(transfer.wait(), Err(TransferError::Forked)));
        drop(started);
        let has_begun = other.reads() > 0 || ring.device().requested() > requested;
        let is_usable = ring.is_usable();
        drop(transfer);
        // The threads of the ring exist in the parent only: nothing waits for them.
        drop(ring);
        are_over && are_errors && !has_begun && !is_usable && drops.load(Ordering::SeqCst) == 0
    });
    let (transfer, ring) = of_parent.expect("the child has a copy");
    let is_over = transfer.test();
    // Also before a failure: dropping the ring waits for the read.
    source.resume();
    assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
    assert!(ring.is_usable() && !is_over, "the child has cancelled and ended nothing");
    assert_eq!(transfer.wait().expect("it is read"), content.len() as u64);
    assert!(memory.content() == content);
    drop(ring);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}
