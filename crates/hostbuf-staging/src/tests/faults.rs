//! Sources, sinks and devices that fail: one typed error, and no slot is lost.

use std::sync::Arc;
use std::time::Duration;

use crate::{Fault, Ring, SimulatedDevice, TransferError};

use super::byte_source::{ByteSink, ByteSource, PIECE, ReadFault, SLOT, device, pattern, ring, target};

/// Checks that all slots of a ring work.
fn check(ring: &Ring<SimulatedDevice>) {
    let content = pattern(20 * SLOT, 9);
    let (memory, to) = target(content.len());
    ring.read(Arc::new(ByteSource::new(content.clone())), 0, to).wait().unwrap();
    assert!(memory.content() == content);
}

#[test]
fn a_failed_read_is_named_and_other_transfers_go_on() {
    let ring = ring(SimulatedDevice::new(), 3, 2);
    for number in [1, 2, 13, 40] {
        let broken = ByteSource::new(pattern(10 * SLOT, 1)).fault(number, ReadFault::Fail);
        let (broken_memory, to) = target(10 * SLOT);
        let transfer = ring.read(Arc::new(broken), 0, to);
        check(&ring);
        match transfer.wait().unwrap_err() {
            TransferError::Io { doing: "reading", name, offset, source, landed, .. } => {
                assert_eq!((name.as_str(), offset % PIECE as u64), ("bytes", 0));
                assert_eq!(source.to_string(), "the disk is broken");
                assert!(landed <= offset && landed.is_multiple_of(SLOT as u64), "{landed} {offset}");
                let landed = landed as usize;
                assert!(broken_memory.content()[..landed] == pattern(10 * SLOT, 1)[..landed]);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_source_that_ends_or_lies_is_an_error() {
    let ring = ring(SimulatedDevice::new(), 3, 2);
    let (_memory, to) = target(3 * SLOT);
    let short = ring.read(Arc::new(ByteSource::new(vec![1; 2 * SLOT + 10])), 0, to.clone());
    match short.wait().unwrap_err() {
        TransferError::UnexpectedEnd { offset, landed, .. } => {
            // The piece with the end, or one after it.
            assert!(offset >= 2 * SLOT as u64 + 10 && landed <= 2 * SLOT as u64, "{offset} {landed}");
        }
        other => panic!("{other}"),
    }
    let lying = ByteSource::new(vec![1; 3 * SLOT]).fault(5, ReadFault::Lie);
    assert!(matches!(ring.read(Arc::new(lying), 0, to).wait(), Err(TransferError::Io { .. })));
    check(&ring);
}

#[test]
fn a_full_disk_is_an_error_with_its_offset() {
    let ring = ring(SimulatedDevice::new(), 3, 2);
    let (_memory, from) = target(10 * SLOT);
    let sink = ByteSink { full_at: 4 * SLOT as u64 + 100, ..ByteSink::new(10 * SLOT) };
    match ring.write(from, Arc::new(sink), 0).wait().unwrap_err() {
        TransferError::Io { doing: "writing", offset, .. } => assert!(offset >= 4 * SLOT as u64 + 100),
        other => panic!("{other}"),
    }
    check(&ring);
}

#[test]
fn a_failed_copy_is_an_error_in_both_directions() {
    for (fault, seed) in
        [(Fault::Refuse, None), (Fault::Fail, None), (Fault::Refuse, Some(1)), (Fault::Fail, Some(2))]
    {
        for number in [1, 3, 10] {
            let device = device(seed);
            device.fault(number, fault);
            let ring = ring(device, 3, 2);
            let (_memory, all) = target(10 * SLOT);
            let transfer = if number % 2 == 0 {
                ring.write(all, Arc::new(ByteSink::new(10 * SLOT)), 0)
            } else {
                ring.read(Arc::new(ByteSource::new(vec![7; 10 * SLOT])), 0, all)
            };
            match transfer.wait().unwrap_err() {
                TransferError::Device { source, landed, .. } => {
                    assert!(source.device() == "a simulated device" && !source.is_lost());
                    assert!(landed < 10 * SLOT as u64);
                }
                other => panic!("{other}"),
            }
            check(&ring);
        }
    }
}

#[test]
fn a_lost_device_ends_all_transfers_of_its_ring_only() {
    for seed in [None, Some(1), Some(2)] {
        lose(device(seed));
    }
}

/// Loses a device with several transfers of its ring.
fn lose(lost: SimulatedDevice) {
    let other = ring(SimulatedDevice::new(), 3, 2);
    lost.fault(5, Fault::Lose);
    let lost = ring(lost, 3, 2);
    let (_memory, to) = target(10 * SLOT);
    let source = Arc::new(ByteSource::new(vec![7; 10 * SLOT]));
    let transfers: Vec<_> = (0..4).map(|_| lost.read(source.clone(), 0, to.clone())).collect();
    let is_lost = |result| match result {
        Err(TransferError::Device { source, .. }) => source.is_lost(),
        _ => false,
    };
    let results: Vec<_> = transfers.iter().map(|transfer| is_lost(transfer.wait())).collect();
    assert!(results.iter().all(|&is_lost| is_lost), "{results:?}");
    assert!(is_lost(lost.read(source, 0, to).wait()), "a later one");
    check(&other);
    // It does not wait for what never ends.
    drop(lost);
}

#[test]
fn a_slow_device_holds_up_its_own_ring_only() {
    let (slow, other) = (SimulatedDevice::new(), ring(SimulatedDevice::new(), 3, 2));
    slow.fault(2, Fault::Hang);
    slow.fault(4, Fault::Delay(Duration::from_millis(20)));
    let slow = ring(slow, 3, 2);
    let content = pattern(10 * SLOT, 4);
    let (memory, to) = target(10 * SLOT);
    let transfer = slow.read(Arc::new(ByteSource::new(content.clone())), 0, to);
    while !slow.device().is_hanging() {
        std::thread::yield_now();
    }
    check(&other);
    assert!(!transfer.test());
    while !slow.device().is_awaited() {
        std::thread::yield_now();
    }
    slow.device().resume();
    transfer.wait().unwrap();
    assert!(memory.content() == content);
    assert!(slow.counters().waiting_for_device > Duration::ZERO);
}
