//! Tensors that move to a simulated device.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use hostbuf_staging::{
    Backend, DeviceTarget, Fault, HostMemory, Ring, RingOptions, SimulatedDevice, SimulatedMemory,
};

use super::load_through;
use crate::error::{FileProblem, LoadError, LoadErrorKind};
use crate::slice::FusedPart;
use crate::slice_target::SliceTarget;
use crate::table::TensorTable;
use crate::test_folder::TestFolder;

/// Makes two files of numpy with a matrix of 64 rows and 96 columns each, of 16 bits.
fn matrices(folder: &TestFolder) -> Vec<PathBuf> {
    let matrix = |name: &str| {
        let text = "{'descr': '<u2', 'fortran_order': False, 'shape': (64, 96), }";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend((0..64 * 96 * 2).map(|at| (at * 13 + at / 256) as u8));
        folder.write(&format!("{name}.npy"), &bytes)
    };
    vec![matrix("first"), matrix("second")]
}

fn ring(device: SimulatedDevice) -> Ring<SimulatedDevice> {
    let options = RingOptions::new().slots(2).slot_bytes(8192).piece_bytes(4096).workers(2);
    let memory = HostMemory::new(options.bytes().expect("the options are valid"));
    Ring::new(device, options, memory).expect("the memory is large enough")
}

fn memory(bytes: u64) -> (Arc<SimulatedMemory>, DeviceTarget) {
    let memory = Arc::new(SimulatedMemory::new(bytes as usize));
    (memory.clone(), DeviceTarget::new(memory))
}

#[test]
fn tensors_and_slices_arrive() {
    let folder = TestFolder::new("ring");
    let files = matrices(&folder);
    let table = TensorTable::read(&files).expect("the files are valid");
    let (first, second) =
        (table.get("first").expect("it is there"), table.get("second").expect("it is there"));
    let slices = [
        first.slice(0, 3, 4).expect("it is even"),
        second.slice(1, 1, 3).expect("it is even"),
        first.fused_slice(1, &[FusedPart::new(64), FusedPart::new(32)], 1, 4).expect("it is even"),
    ];
    let (whole, to_whole) = memory(second.bytes());
    let mut targets = vec![SliceTarget::new("second", to_whole)];
    let mut expected =
        vec![(whole, fs::read(&files[1]).expect("it is there")[second.range.start as usize..].to_vec())];
    for (slice, entry) in slices.iter().zip([first, second, first]) {
        let (memory, target) = memory(slice.bytes);
        targets.push(SliceTarget::new(&entry.name, target).slice(slice.clone()));
        let content = fs::read(&files[entry.file]).expect("it is there");
        let mut bytes = vec![0; slice.bytes as usize];
        slice.copy(&content[entry.range.start as usize..], &mut bytes);
        expected.push((memory, bytes));
    }
    let ring = ring(SimulatedDevice::new());
    for backend in [Backend::Auto, Backend::Posix] {
        let transfer = load_through(&ring, &table, &targets, backend).expect("the files are open");
        let bytes: u64 = expected.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        assert_eq!(transfer.wait().expect("nothing fails"), bytes);
        assert!(transfer.test() && transfer.landed() == bytes);
        for (number, (memory, bytes)) in expected.iter().enumerate() {
            assert!(memory.content() == *bytes, "{number}");
            memory.fill(&vec![0; bytes.len()]);
        }
    }
}

#[test]
fn a_slice_reads_its_own_bytes_only() {
    let folder = TestFolder::new("part");
    let path = folder.write("large.bin", &vec![9; 1 << 20]);
    let table = TensorTable::read(&[&path]).expect("any file is valid");
    let slice = table.get("large.bin").expect("it is there").slice(0, 2, 16).expect("it is even");
    let (_memory, target) = memory(slice.bytes);
    // The rest of the file is cut off after it was opened, and is not missed until the end.
    let ring = ring(SimulatedDevice::new());
    let targets = [SliceTarget::new("large.bin", target).slice(slice)];
    let transfer = load_through(&ring, &table, &targets, Backend::Posix).expect("the file is open");
    let file = File::options().write(true).open(&path).expect("it is there");
    file.set_len(3 << 16).expect("it is writable");
    let error = transfer.wait().expect_err("the file has changed");
    assert_eq!(transfer.landed(), 1 << 16);
    assert!(matches!(&error, LoadError::File(error) if matches!(error.problem, FileProblem::Changed { .. })));
}

#[test]
fn targets_of_another_length_are_errors() {
    let folder = TestFolder::new("target");
    let table = TensorTable::read(&matrices(&folder)).expect("the files are valid");
    let ring = ring(SimulatedDevice::new());
    let refused = |target: SliceTarget| {
        load_through(&ring, &table, &[target], Backend::Auto).expect_err("the target is invalid")
    };
    let error = refused(SliceTarget::new("first", memory(100).1));
    assert!(matches!(error, LoadError::Target { needed: 12_288, bytes: 100, .. }), "{error}");
    assert_eq!(refused(SliceTarget::new("third", memory(100).1)).kind(), LoadErrorKind::Missing);
    // A slice of a tensor that is larger than this one.
    let mut larger = table.get("first").expect("it is there").clone();
    (larger.shape[0], larger.range.end) = (128, larger.range.end + 12_288);
    let slice = larger.slice(0, 1, 2).expect("it is even");
    let error = refused(SliceTarget::new("first", memory(12_288).1).slice(slice));
    assert!(matches!(error, LoadError::Target { .. }), "{error}");
}

#[test]
fn a_device_that_fails_and_a_file_that_is_gone_are_errors() {
    let folder = TestFolder::new("failing");
    let files = matrices(&folder);
    let table = TensorTable::read(&files).expect("the files are valid");
    let device = SimulatedDevice::new();
    device.fault(1, Fault::Fail);
    let ring = ring(device);
    let targets = [SliceTarget::new("first", memory(12_288).1)];
    let transfer = load_through(&ring, &table, &targets, Backend::Auto).expect("the file is open");
    assert_eq!(transfer.wait().expect_err("the device fails").kind(), LoadErrorKind::Transfer);
    fs::remove_file(&files[0]).expect("it is there");
    let error = load_through(&ring, &table, &targets, Backend::Auto).expect_err("the file is gone");
    assert!(error.to_string().starts_with("opening "), "{error}");
}
