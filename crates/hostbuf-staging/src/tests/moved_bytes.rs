//! Bytes arrive where a naive copy puts them.

use std::sync::Arc;

use crate::{DeviceTarget, SimulatedDevice, Transfer};
use proptest::prelude::*;

use super::byte_source::{ByteSink, ByteSource, SLOT, device, pattern, ring, target};

#[test]
fn a_transfer_fills_the_memory_of_the_device() {
    let ring = ring(SimulatedDevice::new(), 4, 3);
    let content = pattern(10 * SLOT + 123, 1);
    let (memory, to) = target(content.len() - 7);
    let transfer = ring.read(Arc::new(ByteSource::new(content.clone())), 7, to);
    assert_eq!(transfer.wait().unwrap(), content.len() as u64 - 7);
    assert!(transfer.test() && transfer.landed() == content.len() as u64 - 7);
    assert!(memory.content() == content[7..]);
    let counters = ring.counters();
    assert_eq!((counters.transfers, counters.to_device), (1, content.len() as u64 - 7));
    assert_eq!(counters.copies, 11);
}

#[test]
fn a_transfer_writes_the_memory_of_the_device() {
    let ring = ring(SimulatedDevice::new(), 4, 3);
    let content = pattern(10 * SLOT + 123, 2);
    let (memory, from) = target(content.len());
    memory.fill(&content);
    let sink = Arc::new(ByteSink { most: 5000, ..ByteSink::new(content.len() + 7) });
    assert_eq!(ring.write(from, sink.clone(), 7).wait().unwrap(), content.len() as u64);
    assert!(sink.content()[7..] == content && sink.content()[..7] == [0; 7]);
    assert_eq!(ring.counters().from_device, content.len() as u64);
}

#[test]
fn an_empty_transfer_has_ended() {
    let ring = ring(SimulatedDevice::new(), 1, 1);
    let (_memory, to) = target(8);
    let empty = to.part(4..4).unwrap();
    let transfer = ring.read(Arc::new(ByteSource::new(Vec::new())), 0, empty);
    assert!(transfer.test());
    assert_eq!(transfer.wait().unwrap(), 0);
    assert!(to.part(4..9).unwrap_err().to_string().contains("it has 8 bytes"));
}

#[test]
fn reads_are_aligned_as_the_source_demands() {
    let ring = ring(SimulatedDevice::new(), 2, 2);
    let content = pattern(3 * SLOT + 5000, 3);
    let source = Arc::new(ByteSource::new(content.clone()).aligned(4096));
    for (offset, bytes) in [(0, content.len()), (1, 4095), (4095, 2), (5000, 2 * SLOT), (SLOT - 1, SLOT + 2)]
    {
        let (memory, to) = target(bytes);
        assert_eq!(ring.read(source.clone(), offset as u64, to).wait().unwrap(), bytes as u64);
        assert!(memory.content() == content[offset..offset + bytes], "{bytes} bytes at {offset}");
    }
}

#[derive(Clone, Debug)]
struct Move {
    reads: bool,
    offset: usize,
    bytes: usize,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (any::<bool>(), 0..2 * SLOT, 1..4 * SLOT);
    proptest::collection::vec(one.prop_map(|(reads, offset, bytes)| Move { reads, offset, bytes }), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Several transfers in both directions at a time, with short reads and writes. With a seed,
    /// copies end in another order than they were requested.
    #[test]
    fn mixed_transfers_equal_naive_copies(
        moves in moves(),
        slots in 1usize..6,
        workers in 1usize..5,
        most in 1usize..40_000,
        seed in any::<Option<u64>>(),
    ) {
        let ring = ring(device(seed), slots, workers);
        let begun: Vec<_> = moves.iter().enumerate().map(|(number, one)| {
            let content = pattern(one.offset + one.bytes, number as u64);
            let (memory, all) = target(one.bytes);
            let sink = Arc::new(ByteSink { most, ..ByteSink::new(one.offset + one.bytes) });
            let transfer: Transfer = if one.reads {
                let source = Arc::new(ByteSource::new(content.clone()).most(most));
                ring.read(source, one.offset as u64, all)
            } else {
                memory.fill(&content[one.offset..]);
                ring.write(DeviceTarget::new(memory.clone()), sink.clone(), one.offset as u64)
            };
            (one, content, memory, sink, transfer)
        }).collect();
        for (one, content, memory, sink, transfer) in begun {
            prop_assert_eq!(transfer.wait().map_err(|error| TestCaseError::fail(error.to_string()))?, one.bytes as u64);
            if one.reads {
                prop_assert!(memory.content() == content[one.offset..]);
            } else {
                prop_assert!(sink.content()[one.offset..] == content[one.offset..]);
            }
        }
    }
}
