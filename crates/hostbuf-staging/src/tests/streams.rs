//! Transfers in the order of a stream of the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Fault, SimulatedDevice, SimulatedStream, TransferError};

use super::byte_source::{ByteSink, ByteSource, ReadFault, SLOT, pattern, ring, target};

#[test]
fn a_read_begins_after_the_work_before_and_later_work_waits_for_it() {
    let ring = ring(SimulatedDevice::new(), 2, 2);
    let stream = SimulatedStream::new();
    let content = pattern(5 * SLOT + 7, 1);
    let (memory, to) = target(content.len());
    let source = Arc::new(ByteSource::new(content.clone()));
    let (reads_before, reads) = (Arc::new(AtomicU64::new(u64::MAX)), source.clone());
    let seen = reads_before.clone();
    stream.push(move || seen.store(reads.reads(), Ordering::SeqCst));
    let transfer = ring.read_on(&stream, source, 0, to);
    let (in_later_work, later_memory) = (Arc::new(std::sync::Mutex::new(Vec::new())), memory.clone());
    let later = in_later_work.clone();
    stream.push(move || *later.lock().expect("no panic") = later_memory.content());
    // Neither the ring nor the caller has waited for the stream.
    assert!(!transfer.test());
    while !stream.run() {
        std::thread::yield_now();
    }
    assert_eq!(reads_before.load(Ordering::SeqCst), 0, "nothing was read before the work");
    assert!(*in_later_work.lock().expect("no panic") == content, "later work has found all bytes");
    assert_eq!(transfer.wait().expect("it is read"), content.len() as u64);
}

#[test]
fn a_write_begins_after_the_work_before() {
    let ring = ring(SimulatedDevice::new(), 2, 1);
    let stream = SimulatedStream::new();
    let content = pattern(3 * SLOT, 2);
    let (memory, from) = target(content.len());
    let (written, filled) = (content.clone(), memory.clone());
    stream.push(move || filled.fill(&written));
    let sink = Arc::new(ByteSink::new(content.len()));
    let transfer = ring.write_on(&stream, from, sink.clone(), 0);
    let length = content.len();
    stream.push(move || memory.fill(&vec![0; length]));
    while !stream.run() {
        std::thread::yield_now();
    }
    transfer.wait().expect("it is written");
    assert!(sink.content() == content, "the memory has changed after the transfer only");
}

#[test]
fn a_stream_goes_on_after_a_transfer_that_fails_or_is_cancelled() {
    let device = SimulatedDevice::new();
    let ring = ring(device.clone(), 2, 1);
    let stream = SimulatedStream::new();
    let (_memory, to) = target(4 * SLOT);
    let failing = Arc::new(ByteSource::new(vec![1; 4 * SLOT]).fault(2, ReadFault::Fail));
    let good = Arc::new(ByteSource::new(vec![1; 4 * SLOT]));
    let failed = ring.read_on(&stream, failing, 0, to.clone());
    let cancelled = ring.read_on(&stream, good.clone(), 0, to.clone());
    cancelled.cancel();
    assert!(matches!(cancelled.wait(), Err(TransferError::Cancelled { landed: 0 })));
    drop(ring.read_on(&stream, good.clone(), 0, to.clone()));
    while !stream.run() {
        std::thread::yield_now();
    }
    assert!(matches!(failed.wait(), Err(TransferError::Io { .. })));
    // A lost device ends those that wait as well, and the stream goes on.
    device.fault(device.requested() + 1, Fault::Lose);
    let lost = ring.read_on(&stream, good.clone(), 0, to.clone());
    let after = ring.read_on(&stream, good, 0, to);
    while !stream.run() {
        std::thread::yield_now();
    }
    for transfer in [lost, after] {
        assert!(matches!(transfer.wait(), Err(TransferError::Device { source, .. }) if source.is_lost()));
    }
}

#[test]
fn a_dropped_ring_ends_the_transfers_that_wait_for_a_stream() {
    let ring = ring(SimulatedDevice::new(), 2, 1);
    let stream = SimulatedStream::new();
    let (memory, to) = target(4 * SLOT);
    let transfer = ring.read_on(&stream, Arc::new(ByteSource::new(vec![1; 4 * SLOT])), 0, to);
    drop(ring);
    assert!(matches!(transfer.wait(), Err(TransferError::Cancelled { landed: 0 })));
    drop(transfer);
    assert_eq!(Arc::strong_count(&memory), 1, "the stream keeps nothing");
    assert!(stream.run(), "it waits for nothing");
}

#[test]
fn a_stream_that_is_captured_is_refused() {
    let ring = ring(SimulatedDevice::new(), 2, 1);
    let stream = SimulatedStream::new();
    stream.capture(true);
    let (_memory, to) = target(SLOT);
    let error = ring.read_on(&stream, Arc::new(ByteSource::new(vec![1; SLOT])), 0, to).wait();
    let error = error.expect_err("it is refused").to_string();
    assert!(error.contains("the stream is being captured"), "{error}");
    assert!(stream.run(), "it has no work");
}

#[test]
fn a_stream_goes_on_beside_a_transfer_that_only_begins_after_it() {
    let device = SimulatedDevice::new();
    device.fault(1, Fault::Hang);
    let ring = ring(device.clone(), 2, 1);
    let stream = SimulatedStream::new();
    let (_memory, to) = target(2 * SLOT);
    let transfer = ring.read_after(&stream, Arc::new(ByteSource::new(vec![1; 2 * SLOT])), 0, to);
    assert!(stream.run(), "it does not wait");
    while !device.is_hanging() {
        std::thread::yield_now();
    }
    device.resume();
    transfer.wait().expect("it is read");
}

#[test]
fn the_oldest_transfer_that_blocks_a_stream_has_a_slot_of_its_own() {
    let device = SimulatedDevice::new();
    let ring = ring(device.clone(), 2, 2);
    let stream = SimulatedStream::new();
    let content = pattern(3 * SLOT + 5, 4);
    let source = Arc::new(ByteSource::new(content.clone()));
    let (memory, to) = target(content.len());
    let (_others, of_others) = target(content.len());
    // The first one reserves the slot.
    let first = ring.read_on(&stream, source.clone(), 0, to.clone());
    while !stream.run() {
        std::thread::yield_now();
    }
    first.wait().expect("it is read");
    // The other slot is in use until the device goes on.
    device.fault(device.requested() + 1, Fault::Hang);
    let hanging = ring.read(source.clone(), 0, of_others.clone());
    while !device.is_hanging() {
        std::thread::yield_now();
    }
    let after = ring.read(source.clone(), 0, of_others);
    memory.fill(&vec![0; content.len()]);
    let oldest = ring.read_on(&stream, source.clone(), 0, to.clone());
    let next = ring.read_on(&stream, source, 0, to);
    while !stream.run() {
        std::thread::yield_now();
    }
    assert!(memory.content() == content && device.is_hanging() && !hanging.test());
    for transfer in [oldest, next] {
        transfer.wait().expect("it is read");
    }
    device.resume();
    for transfer in [hanging, after] {
        transfer.wait().expect("it is read");
    }
}

#[test]
fn a_ring_of_one_slot_orders_nothing_by_a_stream() {
    let ring = ring(SimulatedDevice::new(), 1, 1);
    let stream = SimulatedStream::new();
    let (_memory, to) = target(SLOT);
    let error = ring.read_on(&stream, Arc::new(ByteSource::new(vec![1; SLOT])), 0, to).wait();
    let error = error.expect_err("it is refused").to_string();
    assert!(error.contains("make it with at least two"), "{error}");
    assert!(stream.run(), "it has no work");
}
