//! The counters name what bounds a ring: the source, the sink, the device and the slots are
//! throttled in turn.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::byte_source::{PIECE, SLOT, ring, target};
use crate::{Fault, HostMemory, ReadAt, Ring, RingOptions, SimulatedDevice, StagingBound, WriteAt};

/// The time that a throttled operation takes: long beside everything that is not throttled.
const SLOW: Duration = Duration::from_millis(10);

/// A source and sink, each of whose operations takes some time.
#[derive(Debug)]
struct Throttled(Duration);

impl ReadAt for Throttled {
    fn name(&self) -> String {
        "throttled".into()
    }

    fn read_at(&self, into: &mut [u8], _offset: u64) -> io::Result<usize> {
        std::thread::sleep(self.0);
        Ok(into.len())
    }
}

impl WriteAt for Throttled {
    fn name(&self) -> String {
        "throttled".into()
    }

    fn write_at(&self, from: &[u8], _offset: u64) -> io::Result<usize> {
        std::thread::sleep(self.0);
        Ok(from.len())
    }
}

fn bound(ring: &Ring<SimulatedDevice>, endpoint: Throttled, reads: bool) -> StagingBound {
    bound_of(40, ring, endpoint, reads)
}

/// Moves some slots, and returns what bounded the ring. Prints the counts, for a test that fails.
fn bound_of(slots: usize, ring: &Ring<SimulatedDevice>, endpoint: Throttled, reads: bool) -> StagingBound {
    let (_memory, all) = target(slots * SLOT);
    let before = ring.counters();
    let endpoint = Arc::new(endpoint);
    let transfer = if reads { ring.read(endpoint, 0, all) } else { ring.write(all, endpoint, 0) };
    transfer.wait().unwrap();
    let counters = ring.counters().since(&before);
    println!("{counters:?}");
    assert!(counters.active > Duration::ZERO && counters.rate() > 0.0);
    counters.bound()
}

/// Makes a ring whose device takes `time` for each of its first 200 copies.
fn ring_with_slow_device(time: Duration, slots: usize, workers: usize) -> Ring<SimulatedDevice> {
    let device = SimulatedDevice::new();
    for number in 1..=200 {
        device.fault(number, Fault::Delay(time));
    }
    ring(device, slots, workers)
}

#[test]
fn a_slow_source_is_named() {
    let ring = ring(SimulatedDevice::new(), 4, 3);
    assert_eq!(bound(&ring, Throttled(SLOW), true), StagingBound::Source);
}

#[test]
fn a_slow_sink_is_named() {
    let ring = ring(SimulatedDevice::new(), 4, 3);
    assert_eq!(bound(&ring, Throttled(SLOW), false), StagingBound::Sink);
}

#[test]
fn a_slow_device_is_named() {
    for reads in [true, false] {
        let ring = ring_with_slow_device(SLOW, 4, 3);
        assert_eq!(bound(&ring, Throttled(Duration::ZERO), reads), StagingBound::Device);
    }
}

#[test]
fn too_few_slots_are_named() {
    let device = SimulatedDevice::new();
    for number in 1..=200 {
        device.fault(number, Fault::Delay(SLOW));
    }
    // One slot of one piece: while it is filled, the device waits, and the other way round.
    let options = RingOptions::new().slots(1).slot_bytes(PIECE).piece_bytes(PIECE).workers(3);
    let ring = Ring::new(device, options, HostMemory::new(PIECE)).unwrap();
    assert_eq!(bound_of(10, &ring, Throttled(SLOW), true), StagingBound::Slots);
    let counters = ring.counters();
    // A single thread that finds a core waits for the device only.
    assert!(counters.waiting_for_slot + counters.waiting_for_device > SLOW);
}

#[test]
fn a_ring_without_transfers_is_idle() {
    let ring = ring(SimulatedDevice::new(), 4, 3);
    assert_eq!(ring.counters().bound(), StagingBound::Idle);
    assert_eq!(ring.counters().rate(), 0.0);
}
