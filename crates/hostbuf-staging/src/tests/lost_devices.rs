//! A device that is lost may access the memory of both sides for ever, so both stay.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::byte_source::{ByteSink, ByteSource, SLOT, device, target};
use super::counted_ring_memory::counted_ring;
use crate::{Fault, TransferError};

/// The number of slots that each transfer fills.
const TURNS: usize = 10;

/// Moves bytes by a ring whose fifth copy meets `fault`. Returns the number of drops of the ring's
/// memory, and whether the memory of the device still exists, after all handles have been dropped.
fn after_fault(fault: Option<Fault>, is_read: bool, seed: Option<u64>) -> (usize, bool) {
    let device = device(seed);
    if let Some(fault) = fault {
        device.fault(5, fault);
    }
    let (ring, drops) = counted_ring(device);
    let (memory, all) = target(TURNS * SLOT);
    let on_device = Arc::downgrade(&memory);
    let transfer = match is_read {
        true => ring.read(Arc::new(ByteSource::new(vec![7; TURNS * SLOT])), 0, all),
        false => ring.write(all, Arc::new(ByteSink::new(TURNS * SLOT)), 0),
    };
    let result = transfer.wait();
    let is_lost = matches!(&result, Err(TransferError::Device { source, .. }) if source.is_lost());
    assert_eq!((result.is_err(), is_lost), (fault.is_some(), fault == Some(Fault::Lose)), "{result:?}");
    assert_eq!(drops.load(Ordering::SeqCst), 0, "the ring has its memory");
    drop((transfer, memory));
    drop(ring);
    (drops.load(Ordering::SeqCst), on_device.upgrade().is_some())
}

#[test]
fn the_memory_of_both_sides_outlives_the_ring_of_a_lost_device() {
    for seed in [None, Some(1), Some(2)] {
        for is_read in [true, false] {
            assert_eq!(after_fault(Some(Fault::Lose), is_read, seed), (0, true), "{is_read} {seed:?}");
            for fault in [None, Some(Fault::Fail), Some(Fault::Refuse)] {
                assert_eq!(after_fault(fault, is_read, seed), (1, false), "{fault:?} {is_read} {seed:?}");
            }
        }
    }
}
