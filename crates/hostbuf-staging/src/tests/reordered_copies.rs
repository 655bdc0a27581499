//! Copies that end in another order than they were requested.

use std::sync::Arc;

use crate::{Fault, SimulatedDevice, TransferError};

use super::byte_source::{ByteSink, ByteSource, SLOT, pattern, ring, target};

/// The number of slots of each transfer.
const TURNS: usize = 20;

#[test]
fn each_slot_waits_for_its_own_copy() {
    for seed in 0..8 {
        for slots in [2, 6] {
            let ring = ring(SimulatedDevice::reordering(seed), slots, 3);
            let content = pattern(TURNS * SLOT + 5, seed);
            let (memory, to) = target(content.len());
            ring.read(Arc::new(ByteSource::new(content.clone())), 0, to.clone()).wait().unwrap();
            assert!(memory.content() == content, "read with {slots} slots and seed {seed}");
            let sink = Arc::new(ByteSink::new(content.len()));
            ring.write(to, sink.clone(), 0).wait().unwrap();
            assert!(sink.content() == content, "written with {slots} slots and seed {seed}");
            assert!(ring.device().reordered() > 0, "{slots} slots and seed {seed}");
        }
    }
}

#[test]
fn bytes_before_a_failed_copy_have_landed() {
    for (seed, number) in (0..8).flat_map(|seed| [(seed, 4), (seed, 13)]) {
        let device = SimulatedDevice::reordering(seed);
        device.fault(number, Fault::Fail);
        let ring = ring(device, 6, 3);
        let content = pattern(TURNS * SLOT, seed);
        let (memory, to) = target(content.len());
        let result = ring.read(Arc::new(ByteSource::new(content.clone())), 0, to).wait();
        let Err(TransferError::Device { landed, .. }) = result else { panic!("{result:?}") };
        assert!(landed.is_multiple_of(SLOT as u64), "{landed}");
        assert!(memory.content()[..landed as usize] == content[..landed as usize], "seed {seed}");
    }
}

#[test]
fn a_cancelled_transfer_waits_for_all_its_copies() {
    for seed in 0..8 {
        let ring = ring(SimulatedDevice::reordering(seed), 6, 3);
        let content = pattern(TURNS * SLOT, seed);
        let (memory, to) = target(content.len());
        let transfer = ring.read(Arc::new(ByteSource::new(content.clone())), 0, to);
        while ring.device().requested() < 10 {
            std::thread::yield_now();
        }
        transfer.cancel();
        let landed = match transfer.wait() {
            Ok(bytes) | Err(TransferError::Cancelled { landed: bytes }) => bytes as usize,
            Err(other) => panic!("{other}"),
        };
        assert!(memory.content()[..landed] == content[..landed], "seed {seed}");
        // All slots are free again.
        let (memory, to) = target(content.len());
        ring.read(Arc::new(ByteSource::new(content.clone())), 0, to).wait().unwrap();
        assert!(memory.content() == content, "seed {seed}");
    }
}
