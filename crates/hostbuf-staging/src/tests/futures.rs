//! Transfers as futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::{Fault, NamedFile, SimulatedDevice, TransferError};
use futures::executor::block_on;
use futures::future::join_all;

use super::byte_source::{ByteSource, SLOT, pattern, ring, target};

/// Returns the number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("/proc is there").count()
}

#[test]
fn ten_thousand_pending_transfers_need_no_thread_each() {
    const COUNT: usize = 10_000;
    const BYTES: usize = 512;
    const SLOTS: usize = 4;
    let device = SimulatedDevice::new();
    device.fault(1, Fault::Hang);
    let ring = ring(device.clone(), SLOTS, 2);
    let content = pattern(COUNT * BYTES, 1);
    let source = Arc::new(ByteSource::new(content.clone()));
    let (memory, to) = target(content.len());
    // The first copy hangs, and those behind it wait.
    let (first_memory, first_to) = target(SLOT);
    let first = ring.read(Arc::new(ByteSource::new(pattern(SLOT, 2))), 0, first_to);
    while !device.is_hanging() {
        std::thread::yield_now();
    }
    let before = threads();
    let mut transfers: Vec<_> = (0..COUNT)
        .map(|number| {
            let start = (number * BYTES) as u64;
            let part = to.part(start..start + BYTES as u64).expect("it is within");
            ring.read(source.clone(), start, part)
        })
        .collect();
    while device.requested() < SLOTS as u64 {
        std::thread::yield_now();
    }
    let mut context = Context::from_waker(Waker::noop());
    assert!(transfers.iter_mut().all(|transfer| Pin::new(transfer).poll(&mut context).is_pending()));
    assert!(threads() < before + 100, "{} threads, and {before} before", threads());
    // Every second one is dropped after it was polled.
    let mut number = 0;
    transfers.retain(|_| {
        number += 1;
        number % 2 == 1
    });
    assert!(transfers.iter_mut().all(|transfer| Pin::new(transfer).poll(&mut context).is_pending()));
    assert_eq!(device.requested() as usize, SLOTS, "no slot is free");
    device.resume();
    let results = block_on(join_all(transfers));
    assert!(results.iter().all(|result| matches!(result, Ok(bytes) if *bytes == BYTES as u64)));
    assert_eq!(first.wait().unwrap(), SLOT as u64);
    assert!(first_memory.content() == pattern(SLOT, 2));
    let arrived = memory.content();
    let dropped = (0..COUNT).filter(|number| {
        let range = number * BYTES..(number + 1) * BYTES;
        let has_arrived = arrived[range.clone()] == content[range];
        assert!(has_arrived || number % 2 == 1, "transfer {number}");
        !has_arrived
    });
    // Those that had a slot when they were dropped may have landed.
    assert!(dropped.count() >= COUNT / 2 - SLOTS);
    // Each slot is free again: as many copies hang as there are slots.
    let (after_memory, after_to) = target(2 * SLOTS * SLOT);
    let copies = device.requested();
    device.fault(copies + 1, Fault::Hang);
    let after = ring.read(Arc::new(ByteSource::new(pattern(2 * SLOTS * SLOT, 3))), 0, after_to);
    while device.requested() < copies + SLOTS as u64 || !device.is_hanging() {
        std::thread::yield_now();
    }
    device.resume();
    after.wait().unwrap();
    assert!(after_memory.content() == pattern(2 * SLOTS * SLOT, 3));
}

#[test]
fn a_future_has_the_error() {
    let ring = ring(SimulatedDevice::new(), 4, 2);
    let folder = std::fs::File::open("/").expect("it is there");
    let (_memory, to) = target(4096);
    let error = block_on(ring.read(Arc::new(NamedFile::new("/", folder)), 0, to)).unwrap_err();
    assert!(matches!(&error, TransferError::Io { name, .. } if name == "/"), "{error}");
    let text =
        "reading / at offset 0 for a simulated device: Is a directory (os error 21); 0 bytes have landed";
    assert_eq!(error.to_string(), text);
}
