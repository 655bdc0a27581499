//! Copies of slices that consist of rows, compared with a naive copy.

use std::sync::Arc;

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer};
use hostbuf_staging::{DeviceTarget, SimulatedDevice, SimulatedMemory};
use proptest::prelude::*;

use super::region_rows::RegionRows;
use crate::load::LoadOptions;
use crate::slice_target::SliceTarget;
use crate::table::TensorTable;
use crate::test_folder::TestFolder;

/// Returns each byte of rows: its offset in the region, and its address.
fn bytes_of(rows: &RegionRows) -> Vec<(u64, u64)> {
    let row = |number: u64| {
        let (offset, address) =
            (rows.offset + number * rows.pitch, rows.address + number * rows.address_pitch);
        (0..rows.width).map(move |at| (offset + at, address + at))
    };
    (0..rows.height).flat_map(row).collect()
}

prop_compose! {
    fn any_rows()(
        offset in 0u64..500,
        width in 1u64..60,
        height in 0u64..40,
        gap in 0u64..50,
        address_gap in 0u64..5,
    ) -> RegionRows {
        let (pitch, address_pitch) = (width + gap, width + address_gap);
        RegionRows { offset, pitch, width, height, address: 7000, address_pitch }
    }
}

proptest! {
    #[test]
    fn each_byte_is_in_one_window(rows in any_rows(), window_bits in 3u32..10) {
        let window_bytes = 1u64 << window_bits;
        let (mut found, mut pieces) = (Vec::new(), 0);
        rows.divide(window_bytes, |window, part| {
            assert!(part.offset >= window * window_bytes, "{part:?}");
            assert!(part.offset + part.extent() <= (window + 1) * window_bytes, "{part:?}");
            found.extend(bytes_of(&part));
            pieces += 1;
        });
        prop_assert_eq!(found, bytes_of(&rows));
        // Each window begins or ends at most one copy of rows, and a divided row at its beginning.
        let windows = (rows.offset + rows.extent()) / window_bytes + 1 - rows.offset / window_bytes;
        prop_assert!(pieces <= 3 * windows, "{} pieces in {} windows", pieces, windows);
    }

    #[test]
    fn slices_on_a_device_are_those_of_a_naive_copy(
        shape in proptest::collection::vec(1usize..12, 1..4),
        last in 1usize..400,
        is_fortran in any::<bool>(),
        dim in any::<proptest::sample::Index>(),
        ranks in 1usize..5,
        window_bits in 12u32..15,
    ) {
        let mut shape = shape;
        shape.push(last);
        let folder = TestFolder::new("rows");
        let path = folder.write("t.npy", &npy(&shape, is_fortran));
        let (device, options) = (SimulatedDevice::new(), LoadOptions::new().window_bytes(1 << window_bits));
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(4 << 20)).expect("the host has the memory");
        let dim = dim.index(shape.len());
        let mut memories = Vec::new();
        let table = TensorTable::read(&[&path]).expect("the file is valid");
        let entry = table.get("t").expect("it is there");
        let targets: Vec<SliceTarget> = (0..ranks)
            .map(|rank| entry.slice(dim, rank, ranks).expect("elements are bytes"))
            .filter(|slice| slice.bytes > 0)
            .map(|slice| {
                memories.push(Arc::new(SimulatedMemory::new(slice.bytes as usize)));
                let memory = memories.last().expect("one was added").clone();
                SliceTarget::new("t", DeviceTarget::new(memory)).slice(slice)
            })
            .collect();
        let loaded = options.load_to_device(&Solo, &buffer, &[&path], &device, &|_| Ok(targets.clone()));
        let tensors = loaded.expect("nothing fails");
        let bytes = tensors.get("t").expect("it is there").bytes;
        let expected: Vec<Vec<u8>> = targets
            .iter()
            .map(|target| {
                let slice = target.slice.as_ref().expect("each target has one");
                let mut expected = vec![0; slice.bytes as usize];
                slice.copy(bytes, &mut expected);
                expected
            })
            .collect();
        let found = |memories: &[Arc<SimulatedMemory>]| -> Vec<Vec<u8>> {
            memories.iter().map(|memory| memory.content()).collect()
        };
        prop_assert!(found(&memories) == expected, "copied during the load");
        for memory in &memories {
            let zeros = vec![0; memory.content().len()];
            memory.fill(&zeros);
        }
        let before = device.requested();
        let copied = tensors.copy_to_device(&device, &targets).expect("nothing fails");
        prop_assert_eq!(copied, bytes.len() as u64);
        prop_assert!(found(&memories) == expected, "copied from the full buffer");
        // A slice has one part: one copy of rows, or at most three rows.
        prop_assert!(device.requested() - before <= 3 * targets.len() as u64);
    }
}

/// Makes an `.npy` file of bytes.
fn npy(shape: &[usize], is_fortran: bool) -> Vec<u8> {
    let order = if is_fortran { "True" } else { "False" };
    let sizes = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let text = format!("{{'descr': '|u1', 'fortran_order': {order}, 'shape': ({sizes}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    let count = shape.iter().product::<usize>();
    bytes.extend((0..count).map(|at| (at * 7 + at / 251) as u8));
    bytes
}
