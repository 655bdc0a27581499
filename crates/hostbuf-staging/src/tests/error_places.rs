//! The places that an error names: the source or sink, the offset, the device, and the bytes that
//! have landed.

use std::sync::Arc;

use super::byte_source::{ByteSink, ByteSource, PIECE, ReadFault, SLOT, ring, target};
use crate::{DeviceTarget, Fault, Ring, SimulatedDevice, TransferError, TransferPart};

/// The offset of the transfers.
const START: u64 = 1000;
/// The number of slots that a transfer fills.
const TURNS: usize = 8;

/// Makes a ring of one slot and one thread, so that each turn of the slot ends before the next.
fn ring_with(faults: &[(u64, Fault)]) -> Ring<SimulatedDevice> {
    let device = SimulatedDevice::new();
    faults.iter().for_each(|&(number, fault)| device.fault(number, fault));
    ring(device, 1, 1)
}

fn source() -> ByteSource {
    ByteSource::new(vec![7; 2 * TURNS * SLOT])
}

/// Makes a sink that has no room from `full_at` on.
fn sink(full_at: u64) -> Arc<ByteSink> {
    Arc::new(ByteSink { full_at, ..ByteSink::new(2 * TURNS * SLOT) })
}

/// Makes `count` parts of `bytes` bytes, at equal distances in the source and on the device.
fn parts(count: u64, bytes: u64, distance: u64) -> Vec<TransferPart> {
    let (_memory, all) = target((count * distance) as usize);
    let part = |number: u64| {
        let start = number * distance;
        TransferPart::new(START + start, all.part(start..start + bytes).expect("it is within"))
    };
    (0..count).map(part).collect()
}

/// Checks the places of an error, and that its message is one line with all of them.
fn assert_places(error: &TransferError, expected_offset: u64, expected_landed: usize) {
    let (name, offset, device, landed) = match error {
        TransferError::Io { name, offset, device, landed, .. }
        | TransferError::UnexpectedEnd { name, offset, device, landed } => {
            (name, offset, device.as_str(), landed)
        }
        TransferError::Device { name, offset, source, landed, .. } => (name, offset, source.device(), landed),
        other => panic!("{other}"),
    };
    let places = (name.as_str(), *offset, device, *landed);
    assert_eq!(places, ("bytes", expected_offset, "a simulated device", expected_landed as u64), "{error}");
    let message = error.to_string();
    for part in [name, device, &format!("offset {offset}"), &format!("{landed} bytes have landed")] {
        assert!(message.contains(part) && !message.contains('\n'), "{part}: {message}");
    }
}

/// Checks the device's address in an error of a device.
fn assert_address(error: &TransferError, expected: u64) {
    let TransferError::Device { address, .. } = error else { panic!("{error}") };
    assert_eq!(*address, expected, "{error}");
}

#[test]
fn errors_of_sources_and_sinks_have_all_places() {
    let (_memory, all) = target(TURNS * SLOT);
    let ring = ring_with(&[]);
    let fourteenth_piece = START + (3 * SLOT + PIECE) as u64;
    // Each piece takes four reads.
    let broken = source().most(5000).fault(4 * 13 + 3, ReadFault::Fail);
    let error = ring.read(Arc::new(broken), START, all.clone()).wait().unwrap_err();
    assert!(matches!(error, TransferError::Io { doing: "reading", .. }), "{error}");
    assert_places(&error, fourteenth_piece + 10_000, 3 * SLOT);

    let short = ByteSource::new(vec![7; fourteenth_piece as usize + 9]);
    let error = ring.read(Arc::new(short), START, all.clone()).wait().unwrap_err();
    assert!(matches!(error, TransferError::UnexpectedEnd { .. }), "{error}");
    assert_places(&error, fourteenth_piece + 9, 3 * SLOT);

    let error = ring.write(all, sink(fourteenth_piece + 100), START).wait().unwrap_err();
    assert!(matches!(error, TransferError::Io { doing: "writing", .. }), "{error}");
    assert_places(&error, fourteenth_piece + 100, 3 * SLOT);
}

#[test]
fn errors_of_a_device_have_all_places() {
    for fault in [Fault::Refuse, Fault::Fail, Fault::Lose] {
        let (_memory, all) = target(TURNS * SLOT);
        let transfers = [
            |ring: &Ring<_>, all: DeviceTarget| ring.read(Arc::new(source()), START, all),
            |ring: &Ring<_>, all: DeviceTarget| ring.write(all, sink(u64::MAX), START),
        ];
        for start in transfers {
            let ring = ring_with(&[(4, fault)]);
            let error = start(&ring, all.clone()).wait().unwrap_err();
            assert_places(&error, START + 3 * SLOT as u64, 3 * SLOT);
            assert_address(&error, all.address() + 3 * SLOT as u64);
            if fault == Fault::Lose {
                // No copy of a later transfer begins.
                let error = start(&ring, all.clone()).wait().unwrap_err();
                assert_places(&error, START, 0);
                assert_address(&error, all.address());
            }
        }
    }
}

#[test]
fn errors_of_batches_have_all_places() {
    // A slot has two parts.
    let parts = parts(2 * TURNS as u64 - 1, SLOT as u64 / 2, SLOT as u64);
    let ring = ring_with(&[]);
    let offset = |part: usize| parts[part].offset;
    // Each part has two pieces.
    let broken = source().fault(16, ReadFault::Fail);
    let error = ring.read_batch(Arc::new(broken), parts.clone()).wait().unwrap_err();
    assert_places(&error, offset(7) + PIECE as u64, 3 * SLOT);

    let short = ByteSource::new(vec![7; offset(7) as usize + 9]);
    let error = ring.read_batch(Arc::new(short), parts.clone()).wait().unwrap_err();
    assert_places(&error, offset(7) + 9, 3 * SLOT);

    let error = ring.write_batch(parts.clone(), sink(offset(7) + 100)).wait().unwrap_err();
    assert_places(&error, offset(7) + 100, 3 * SLOT);

    // The second copy of the fourth slot. Both have one result.
    for fault in [Fault::Refuse, Fault::Fail] {
        let ring = ring_with(&[(8, fault)]);
        let error = ring.read_batch(Arc::new(source()), parts.clone()).wait().unwrap_err();
        assert_places(&error, offset(6), 3 * SLOT);
        assert_address(&error, parts[6].target.address());
        let ring = ring_with(&[(8, fault)]);
        let error = ring.write_batch(parts.clone(), sink(u64::MAX)).wait().unwrap_err();
        assert_places(&error, offset(6), 3 * SLOT);
        assert_address(&error, parts[6].target.address());
    }
}

/// A call of a device starts at most 64 copies.
#[test]
fn a_refused_copy_is_one_of_its_call() {
    // A slot has 256 parts.
    let parts = parts(400, 64, 256);
    let ring = ring_with(&[(256 + 70, Fault::Refuse)]);
    let error = ring.read_batch(Arc::new(source()), parts.clone()).wait().unwrap_err();
    assert_places(&error, parts[256 + 64].offset, 256 * 64);
    assert_address(&error, parts[256 + 64].target.address());
}
