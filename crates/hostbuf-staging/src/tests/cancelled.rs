//! Transfers and rings that end early: the memory is kept until nothing accesses it.

use std::sync::Arc;

use crate::{Fault, SimulatedDevice, TransferError};

use super::byte_source::{ByteSource, ReadFault, SLOT, pattern, ring, target};

#[test]
fn a_cancelled_transfer_ends_when_its_last_copy_has_landed() {
    let device = SimulatedDevice::new();
    device.fault(3, Fault::Hang);
    // With several threads the third copy may be requested last, after all others have landed.
    let ring = ring(device, 4, 1);
    let content = pattern(50 * SLOT, 1);
    let (memory, to) = target(content.len());
    let transfer = ring.read(Arc::new(ByteSource::new(content.clone())), 0, to);
    while !ring.device().is_hanging() {
        std::thread::yield_now();
    }
    transfer.cancel();
    assert!(!transfer.test(), "the device still copies");
    ring.device().resume();
    let landed = match transfer.wait() {
        Err(TransferError::Cancelled { landed }) => landed as usize,
        other => panic!("{other:?}"),
    };
    assert!(landed < content.len() && landed % SLOT == 0, "{landed}");
    assert!(memory.content()[..landed] == content[..landed]);
}

#[test]
fn a_dropped_transfer_keeps_the_memory_of_the_device_until_the_copy_has_ended() {
    let device = SimulatedDevice::new();
    device.fault(1, Fault::Hang);
    let ring = ring(device, 2, 2);
    let (memory, to) = target(4 * SLOT);
    let transfer = ring.read(Arc::new(ByteSource::new(vec![7; 4 * SLOT])), 0, to);
    while !ring.device().is_hanging() {
        std::thread::yield_now();
    }
    drop(transfer);
    let kept = Arc::downgrade(&memory);
    drop(memory);
    assert!(kept.upgrade().is_some(), "the device writes to it");
    ring.device().resume();
    while kept.upgrade().is_some() {
        std::thread::yield_now();
    }
}

#[test]
fn a_dropped_ring_cancels_its_transfers_and_waits_for_its_device() {
    let device = SimulatedDevice::new();
    device.fault(2, Fault::Hang);
    let ring = ring(device.clone(), 2, 2);
    let (_memory, to) = target(50 * SLOT);
    let source = Arc::new(ByteSource::new(vec![7; 50 * SLOT]));
    let transfers: Vec<_> = (0..3).map(|_| ring.read(source.clone(), 0, to.clone())).collect();
    while !device.is_hanging() {
        std::thread::yield_now();
    }
    let dropping = std::thread::spawn(move || drop(ring));
    // The transfers that have not begun end at once.
    assert!(matches!(transfers[2].wait(), Err(TransferError::Cancelled { landed: 0 })));
    assert!(!dropping.is_finished() && device.is_hanging());
    device.resume();
    dropping.join().unwrap();
    for transfer in &transfers {
        assert!(matches!(transfer.wait(), Err(TransferError::Cancelled { .. })));
    }
}

#[test]
fn a_cancelled_transfer_does_not_wait_for_pieces_that_nobody_has_begun() {
    let ring = ring(SimulatedDevice::new(), 2, 1);
    let source = Arc::new(ByteSource::new(vec![7; 50 * SLOT]).fault(3, ReadFault::Stall));
    let (_memory, to) = target(50 * SLOT);
    let transfer = ring.read(source.clone(), 0, to);
    source.wait_stalled();
    transfer.cancel();
    source.resume();
    assert!(matches!(transfer.wait(), Err(TransferError::Cancelled { landed: 0 })));
    assert_eq!(source.reads(), 3);
}
