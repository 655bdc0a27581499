//! Copies of loaded tensors to a simulated device.

use std::sync::Arc;

use hostbuf::BufferOptions;
use hostbuf::job::Solo;
use hostbuf_staging::{DeviceTarget, Fault, SimulatedDevice, SimulatedMemory};

use crate::error::{LoadError, LoadErrorKind};
use crate::load::LoadOptions;
use crate::slice_target::SliceTarget;
use crate::tensors::Tensors;
use crate::test_folder::TestFolder;

/// Loads a matrix of 40 rows and 24 columns of bytes, and another tensor.
fn loaded(folder: &TestFolder) -> Tensors {
    let text = "{'descr': '|u1', 'fortran_order': False, 'shape': (40, 24), }";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend((0..40 * 24).map(|at| (at * 7 + at / 256) as u8));
    let files = [folder.write("matrix.npy", &bytes), folder.write("other.bin", &[5; 5000])];
    let buffer = BufferOptions::new(0);
    LoadOptions::new().allocate_and_load(&Solo, buffer, &files).expect("the files are valid")
}

fn memory(bytes: u64) -> (Arc<SimulatedMemory>, DeviceTarget) {
    let memory = Arc::new(SimulatedMemory::new(bytes as usize));
    (memory.clone(), DeviceTarget::new(memory))
}

#[test]
fn tensors_and_slices_are_copied() {
    let folder = TestFolder::new("copied");
    let tensors = loaded(&folder);
    let slice = tensors.slice("matrix", 1, 2, 3).expect("it is even");
    let (columns, to_columns) = memory(slice.bytes);
    let (other, to_other) = memory(5000);
    let mut expected = vec![0; slice.bytes as usize];
    slice.copy(tensors.get("matrix").expect("it is there").bytes, &mut expected);
    let targets =
        [SliceTarget::new("matrix", to_columns).slice(slice), SliceTarget::new("other.bin", to_other)];
    let bytes = tensors.copy_to_device(&SimulatedDevice::new(), &targets).expect("nothing fails");
    assert_eq!(bytes, 320 + 5000);
    assert!(columns.content() == expected && other.content() == [5; 5000]);
    assert_eq!(tensors.copy_to_device(&SimulatedDevice::new(), &[]).expect("nothing to copy"), 0);
}

#[test]
fn a_device_that_fails_is_an_error() {
    let folder = TestFolder::new("failed");
    let tensors = loaded(&folder);
    for fault in [Fault::Refuse, Fault::Fail, Fault::Lose] {
        let device = SimulatedDevice::new();
        device.fault(2, fault);
        let slice = tensors.slice("matrix", 1, 0, 2).expect("it is even");
        let target = SliceTarget::new("matrix", memory(slice.bytes).1).slice(slice);
        let error = tensors.copy_to_device(&device, &[target]).expect_err("the device fails");
        assert_eq!(error.kind(), LoadErrorKind::Transfer, "{fault:?}: {error}");
    }
    let wrong = SliceTarget::new("matrix", memory(7).1);
    let error = tensors.copy_to_device(&SimulatedDevice::new(), &[wrong]).expect_err("960 bytes");
    assert!(matches!(error, LoadError::Target { needed: 960, bytes: 7, .. }), "{error}");
}
