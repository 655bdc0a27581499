//! Rings whose device is the host.

#![allow(unsafe_code, reason = "shares memory that the test owns")]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::byte_source::{ByteSink, ByteSource, PIECE, ReadFault, SLOT, pattern, target};
use crate::{
    BorrowedMemory, DeviceTarget, HostDevice, HostMemory, Ring, RingError, RingOptions, TransferError,
    TransferPart,
};

/// Memory of the test that transfers use.
#[derive(Clone)]
struct OwnedBytes(Arc<Mutex<Vec<u8>>>);

impl OwnedBytes {
    /// Makes memory whose first byte is `shift` bytes after a multiple of 4096.
    fn new(bytes: usize, shift: usize) -> (OwnedBytes, DeviceTarget) {
        let mut content = vec![0; bytes + 2 * 4096];
        let start = content.as_ptr().align_offset(4096) + shift;
        let address = NonNull::from(&mut content[start]);
        let owned = OwnedBytes(Arc::new(Mutex::new(content)));
        // SAFETY: the vector is never moved, and the test looks at it after the transfers.
        let memory = unsafe { BorrowedMemory::new(address, bytes, owned.clone()) };
        (owned, DeviceTarget::new(Arc::new(memory)))
    }

    fn content(&self, target: &DeviceTarget) -> Vec<u8> {
        let content = self.0.lock().expect("no panic");
        let start = (target.address() - content.as_ptr() as u64) as usize;
        content[start..start + target.bytes() as usize].to_vec()
    }
}

fn host_ring(slots: usize, workers: usize) -> Ring<HostDevice> {
    let options = RingOptions::new().slots(slots).slot_bytes(SLOT).piece_bytes(PIECE).workers(workers);
    Ring::new(HostDevice::new(), options, HostMemory::new(slots * SLOT)).expect("the options are valid")
}

#[test]
fn bytes_are_read_and_written_without_copies_of_a_device() {
    let ring = host_ring(2, 3);
    let content = pattern(10 * SLOT + 123, 1);
    let (owned, all) = OwnedBytes::new(content.len(), 0);
    ring.read(Arc::new(ByteSource::new(content.clone()).most(5000)), 0, all.clone()).wait().unwrap();
    assert!(owned.content(&all) == content);
    let sink = Arc::new(ByteSink::new(content.len() + 9));
    ring.write(all, sink.clone(), 9).wait().unwrap();
    assert!(sink.content()[9..] == content);
    let counters = ring.counters();
    assert_eq!((counters.to_device, counters.from_device), (content.len() as u64, content.len() as u64));
    assert_eq!(counters.copies, 0);
}

#[test]
fn ordinary_memory_is_a_target() {
    let ring = host_ring(2, 3);
    let content = pattern(3 * SLOT + 5, 2);
    let all = DeviceTarget::new(Arc::new(BorrowedMemory::from(HostMemory::new(content.len()))));
    assert_eq!((all.bytes(), all.is_host_memory()), (content.len() as u64, true));
    ring.read(Arc::new(ByteSource::new(content.clone())), 0, all.clone()).wait().unwrap();
    let sink = Arc::new(ByteSink::new(content.len()));
    ring.write(all, sink.clone(), 0).wait().unwrap();
    assert!(sink.content() == content);
}

#[test]
fn memory_of_another_device_is_refused() {
    let (_memory, other) = target(SLOT);
    let source = Arc::new(ByteSource::new(vec![1; SLOT]));
    let error = host_ring(1, 1).read(source.clone(), 0, other).wait().unwrap_err();
    assert!(matches!(error, TransferError::OtherDevice { .. }), "{error}");
    assert_eq!(source.reads(), 0);
}

#[test]
fn a_failed_read_ends_one_transfer() {
    let ring = host_ring(2, 2);
    let (_owned, to) = OwnedBytes::new(10 * SLOT, 0);
    let broken = ByteSource::new(vec![1; 10 * SLOT]).fault(7, ReadFault::Fail);
    assert!(matches!(ring.read(Arc::new(broken), 0, to.clone()).wait(), Err(TransferError::Io { .. })));
    ring.read(Arc::new(ByteSource::new(vec![1; 10 * SLOT])), 0, to).wait().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_place_in_memory_gets_the_bytes(
        offset in 0usize..10_000,
        bytes in 1usize..3 * SLOT,
        shift in prop::sample::select(vec![0usize, 1, 512, 4095]),
        alignment in prop::sample::select(vec![1u64, 512, 4096]),
        batch: bool,
    ) {
        let ring = host_ring(2, 2);
        let content = pattern(4 * SLOT, offset as u64);
        let source = Arc::new(ByteSource::new(content.clone()).aligned(alignment));
        let (owned, to) = OwnedBytes::new(bytes, shift);
        let transfer = if batch {
            let half = to.bytes() / 2;
            let part = |range: std::ops::Range<u64>| {
                TransferPart::new(offset as u64 + range.start, to.part(range).unwrap())
            };
            ring.read_batch(source, vec![part(half..to.bytes()), part(0..half)])
        } else {
            ring.read(source, offset as u64, to.clone())
        };
        prop_assert_eq!(transfer.wait().map_err(|error| TestCaseError::fail(error.to_string()))?, bytes as u64);
        prop_assert!(owned.content(&to) == content[offset..offset + bytes]);
        let sink = Arc::new(ByteSink::new(4 * SLOT));
        let written = ring.write(to, sink.clone(), offset as u64).wait();
        prop_assert_eq!(written.map_err(|error| TestCaseError::fail(error.to_string()))?, bytes as u64);
        prop_assert!(sink.content()[offset..offset + bytes] == content[offset..offset + bytes]);
    }
}

#[test]
fn slots_that_no_memory_has_room_for_are_an_error() {
    let options = RingOptions::new().slots(1024).slot_bytes(1 << 44).piece_bytes(1 << 40).workers(1);
    let error = Ring::for_host(options).unwrap_err();
    assert!(matches!(error, RingError::NoMemory { bytes } if bytes == 1 << 54), "{error}");
    assert!(error.to_string().contains("request fewer or smaller slots, or raise ulimit -v"), "{error}");
}
