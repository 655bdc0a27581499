//! Batches: many ranges of a file in one transfer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::byte_source::{ByteSink, ByteSource, PIECE, ReadFault, SLOT, pattern, ring, target};
use crate::{Fault, SimulatedDevice, SimulatedMemory, TransferError, TransferPart};

/// Makes a part with memory of its own.
fn part(offset: u64, bytes: usize) -> (Arc<SimulatedMemory>, TransferPart) {
    let (memory, to) = target(bytes);
    (memory, TransferPart::new(offset, to))
}

#[test]
fn small_ranges_share_slots() {
    let ring = ring(SimulatedDevice::new(), 4, 3);
    let content = pattern(100 * PIECE, 1);
    let source = Arc::new(ByteSource::new(content.clone()));
    // 400 ranges of 64 bytes, 1 KiB from each other: one read for each 16 of them.
    let (memories, parts): (Vec<_>, Vec<_>) = (0..400).map(|number| part(number * 1024, 64)).unzip();
    assert_eq!(ring.read_batch(source.clone(), parts).wait().unwrap(), 400 * 64);
    for (number, memory) in memories.iter().enumerate() {
        assert!(memory.content() == content[number * 1024..][..64], "{number}");
    }
    assert_eq!(source.reads(), 25);
    assert_eq!(ring.counters().copies, 400);
}

#[test]
fn a_large_range_of_a_batch_is_copied_slot_by_slot() {
    let ring = ring(SimulatedDevice::new(), 4, 3);
    let content = pattern(9 * SLOT, 2);
    let source = Arc::new(ByteSource::new(content.clone()).aligned(512));
    let (large_memory, large) = part(512, 8 * SLOT);
    let (small_memory, small) = part(3, 7);
    assert_eq!(ring.read_batch(source, vec![large, small]).wait().unwrap(), 8 * SLOT as u64 + 7);
    assert!(large_memory.content() == content[512..][..8 * SLOT]);
    assert!(small_memory.content() == content[3..10]);
    // One copy more for the small one, and one because it shifts the others in the slots.
    assert_eq!(ring.counters().copies, 10);
}

#[test]
fn an_empty_batch_has_ended() {
    let ring = ring(SimulatedDevice::new(), 1, 1);
    let source = Arc::new(ByteSource::new(Vec::new()));
    assert_eq!(ring.read_batch(source.clone(), Vec::new()).wait().unwrap(), 0);
    let empty = TransferPart::new(5, target(1).1.part(1..1).unwrap());
    assert_eq!(ring.read_batch(source, vec![empty]).wait().unwrap(), 0);
}

#[test]
fn ranges_that_overlap_are_read_and_not_written() {
    let ring = ring(SimulatedDevice::new(), 2, 2);
    let content = pattern(2 * SLOT, 3);
    let ((first, of_first), (second, of_second)) = (part(0, SLOT), part(100, SLOT));
    let parts = vec![of_first, of_second];
    ring.read_batch(Arc::new(ByteSource::new(content.clone())), parts.clone()).wait().unwrap();
    assert!(first.content() == content[..SLOT] && second.content() == content[100..][..SLOT]);
    let sink = Arc::new(ByteSink::new(2 * SLOT));
    let error = ring.write_batch(parts, sink.clone()).wait().unwrap_err();
    assert!(matches!(&error, TransferError::Overlap { offset: 100, .. }), "{error}");
    assert!(sink.content().iter().all(|&byte| byte == 0));
}

#[test]
fn a_range_beyond_all_files_is_refused() {
    let ring = ring(SimulatedDevice::new(), 1, 1);
    let source = Arc::new(ByteSource::new(Vec::new()));
    for offset in [u64::MAX, u64::MAX - 7, i64::MAX as u64] {
        let (_memory, to) = target(8);
        let error = ring.read(source.clone(), offset, to).wait().unwrap_err();
        assert!(error.to_string().contains("a file ends before 2^63"), "{error}");
    }
    assert_eq!(source.reads(), 0);
}

#[test]
fn a_batch_that_fails_names_the_place() {
    for fault in [Fault::Refuse, Fault::Fail] {
        let device = SimulatedDevice::new();
        // In the middle of the copies of a slot.
        device.fault(30, fault);
        let ring = ring(device, 2, 2);
        let source = Arc::new(ByteSource::new(pattern(64 * PIECE, 4)));
        let (_memories, parts): (Vec<_>, Vec<_>) = (0..200).map(|number| part(number * 1024, 64)).unzip();
        let transfer = ring.read_batch(source.clone(), parts.clone());
        let ended = transfer.wait();
        assert!(matches!(ended, Err(TransferError::Device { .. })), "{fault:?}: {ended:?}");
        ring.read_batch(source, parts).wait().unwrap();
    }
    let ring = ring(SimulatedDevice::new(), 2, 2);
    let broken = ByteSource::new(pattern(64 * PIECE, 4)).fault(3, ReadFault::Fail);
    let (_memories, parts): (Vec<_>, Vec<_>) = (0..64).map(|number| part(number * 16384, 64)).unzip();
    let error = ring.read_batch(Arc::new(broken), parts).wait().unwrap_err();
    assert!(matches!(error, TransferError::Io { doing: "reading", .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn batches_equal_naive_copies(
        ranges in prop::collection::vec((0usize..2 * SLOT, 1usize..SLOT), 1..40),
        alignment in prop::sample::select(vec![1u64, 512]),
        slots in 1usize..4,
        workers in 1usize..4,
    ) {
        static SEED: AtomicU64 = AtomicU64::new(1);
        let ring = ring(SimulatedDevice::new(), slots, workers);
        let content = pattern(3 * SLOT, SEED.fetch_add(1, Ordering::Relaxed));
        let source = Arc::new(ByteSource::new(content.clone()).aligned(alignment));
        let (memories, parts): (Vec<_>, Vec<_>) =
            ranges.iter().map(|&(offset, bytes)| part(offset as u64, bytes)).unzip();
        ring.read_batch(source, parts).wait().map_err(|error| TestCaseError::fail(error.to_string()))?;
        for (memory, &(offset, bytes)) in memories.iter().zip(&ranges) {
            prop_assert!(memory.content() == content[offset..offset + bytes]);
        }
        // Write them one after the other, with gaps.
        let (mut at, mut parts, mut expected) = (0, Vec::new(), vec![0; 80 * SLOT]);
        for (memory, &(offset, bytes)) in memories.iter().zip(&ranges) {
            at += offset % 100;
            parts.push(TransferPart::new(at as u64, crate::DeviceTarget::new(memory.clone())));
            expected[at..at + bytes].copy_from_slice(&memory.content());
            at += bytes;
        }
        let sink = Arc::new(ByteSink::new(expected.len()));
        ring.write_batch(parts, sink.clone()).wait().map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(sink.content() == expected);
    }
}
