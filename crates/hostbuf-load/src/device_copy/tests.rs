//! Copies of loaded tensors to a simulated device.

#![allow(unsafe_code, reason = "passes copies on to a simulated device")]

use std::sync::{Arc, Mutex, OnceLock};

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer};
use hostbuf_staging::{
    CopyDevice, DeviceCopy, DeviceError, DeviceTarget, Fault, SimulatedDevice, SimulatedEvent,
    SimulatedMemory, TransferError,
};

use crate::error::{LoadError, LoadErrorKind};
use crate::load::LoadOptions;
use crate::slice_target::SliceTarget;
use crate::table::TensorTable;
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
    // The first copy is that of the other tensor, and the second one that of the rows.
    for number in 1..=2 {
        for fault in [Fault::Refuse, Fault::Fail, Fault::Lose] {
            let device = SimulatedDevice::new();
            device.fault(number, fault);
            let slice = tensors.slice("matrix", 1, 1, 2).expect("it is even");
            let rows = SliceTarget::new("matrix", memory(slice.bytes).1).slice(slice);
            let other = SliceTarget::new("other.bin", memory(5000).1);
            let error = tensors.copy_to_device(&device, &[rows, other]).expect_err("the device fails");
            assert_eq!(error.kind(), LoadErrorKind::Transfer, "copy {number}, {fault:?}: {error}");
            // A device may be lost before or after the other copy has started.
            if fault != Fault::Lose {
                assert_names_the_file(&error, &tensors, number);
            }
        }
    }
    let wrong = SliceTarget::new("matrix", memory(7).1);
    let error = tensors.copy_to_device(&SimulatedDevice::new(), &[wrong]).expect_err("960 bytes");
    assert!(matches!(error, LoadError::Target { needed: 960, bytes: 7, .. }), "{error}");
}

/// Checks that an error names the place in the file of which copy `number` has failed.
fn assert_names_the_file(error: &LoadError, tensors: &Tensors, number: u64) {
    let LoadError::Transfer(TransferError::Device { name, offset, source, .. }) = error else {
        panic!("{error}")
    };
    let [matrix, other] = tensors.table().files() else { panic!("two files were loaded") };
    // The second half of the columns begins in the first row.
    let (file, expected) = if number == 1 { (other, 0) } else { (matrix, matrix.data_start + 12) };
    assert_eq!((name.as_str(), *offset), (file.path.to_str().expect("it is text"), expected), "{error}");
    assert_eq!(source.device(), "a simulated device");
}

/// Writes a file of `bytes` bytes, and returns its content.
fn write_file(folder: &TestFolder, bytes: usize) -> (std::path::PathBuf, Vec<u8>) {
    let content: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 4096) as u8).collect();
    (folder.write("large.bin", &content), content)
}

/// Makes an empty buffer for a file of a megabyte.
fn empty_buffer() -> HostBuffer {
    HostBuffer::allocate(&Solo, BufferOptions::new(4 << 20)).expect("the host has the memory")
}

/// A device whose first copy ends before the call that starts it returns. The thread that reads
/// makes the call, so it does not read the next window before.
struct FirstCopyDevice {
    device: SimulatedDevice,
    buffer: HostBuffer,
    /// True if the load had ended when the first copy started.
    is_late: Arc<OnceLock<bool>>,
}

impl CopyDevice for FirstCopyDevice {
    type Event = SimulatedEvent;

    fn name(&self) -> String {
        self.device.name()
    }

    fn new_event(&self) -> Result<SimulatedEvent, DeviceError> {
        self.device.new_event()
    }

    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], done: &SimulatedEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees the memory of both sides.
        unsafe { self.device.copy_to_device(copies, done) }?;
        if self.is_late.set(Tensors::open(&self.buffer).is_ok()).is_ok() {
            self.device.wait(done)?;
        }
        Ok(())
    }

    unsafe fn copy_to_host(&self, copies: &[DeviceCopy], done: &SimulatedEvent) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.device.copy_to_host(copies, done) }
    }

    fn is_complete(&self, event: &SimulatedEvent) -> Result<bool, DeviceError> {
        self.device.is_complete(event)
    }

    fn wait(&self, event: &SimulatedEvent) -> Result<(), DeviceError> {
        self.device.wait(event)
    }
}

#[test]
fn windows_are_copied_while_others_are_read() {
    let folder = TestFolder::new("first-copy");
    let (path, content) = write_file(&folder, (1 << 20) + 77);
    let (memory, target) = memory(content.len() as u64);
    let (buffer, is_late) = (empty_buffer(), Arc::default());
    let device = FirstCopyDevice {
        device: SimulatedDevice::new(),
        buffer: buffer.clone(),
        is_late: Arc::clone(&is_late),
    };
    let targets = |_: &TensorTable| Ok(vec![SliceTarget::new("large.bin", target.clone())]);
    let options = LoadOptions::new().window_bytes(64 << 10).workers(1);
    options.load_to_device(&Solo, &buffer, &[&path], &device, &targets).expect("nothing fails");
    assert_eq!(is_late.get(), Some(&false), "the first copy has ended before the last window was read");
    assert!(memory.content() == content);
}

#[test]
fn windows_are_read_while_others_are_copied() {
    let folder = TestFolder::new("meanwhile");
    let (path, content) = write_file(&folder, (1 << 20) + 77);
    let (memory, target) = memory(content.len() as u64);
    let (device, calls) = (SimulatedDevice::new(), Mutex::new(0));
    // The first window waits on the device until the others have been read.
    device.fault(1, Fault::Hang);
    let buffer = empty_buffer();
    let tensors = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !device.is_hanging() {
                std::thread::yield_now();
            }
            let is_loaded =
                || Tensors::open(&buffer).is_ok_and(|tensors| tensors.progress().is_ready(0..1 << 20));
            while !is_loaded() {
                std::thread::yield_now();
            }
            device.resume();
        });
        let targets = |table: &TensorTable| {
            *calls.lock().expect("nothing panics") += 1;
            assert_eq!(table.tensors().len(), 1);
            Ok(vec![SliceTarget::new("large.bin", target.clone())])
        };
        let options = LoadOptions::new().window_bytes(64 << 10).workers(2);
        options.load_to_device(&Solo, &buffer, &[&path], &device, &targets)
    });
    let tensors = tensors.expect("nothing fails");
    assert!(memory.content() == content && tensors.get("large.bin").expect("it is there").bytes == content);
    assert_eq!(calls.into_inner().expect("nothing panics"), 1);
}

#[test]
fn a_load_succeeds_without_its_copies() {
    let folder = TestFolder::new("without");
    let (path, content) = write_file(&folder, 300_000);
    for number in 1..=5 {
        for fault in [Fault::Refuse, Fault::Fail, Fault::Lose] {
            let (device, buffer) = (SimulatedDevice::new(), empty_buffer());
            device.fault(number, fault);
            let targets = |_: &TensorTable| Ok(vec![SliceTarget::new("large.bin", memory(300_000).1)]);
            let options = LoadOptions::new().window_bytes(64 << 10);
            let loaded = options.load_to_device(&Solo, &buffer, &[&path], &device, &targets);
            let error = loaded.expect_err("the device fails");
            assert_eq!(error.kind(), LoadErrorKind::Transfer, "copy {number}, {fault:?}: {error}");
            let tensors = Tensors::open(&buffer).expect("the load has succeeded");
            assert!(tensors.get("large.bin").expect("it is there").bytes == content);
        }
    }
    let (device, buffer) = (SimulatedDevice::new(), empty_buffer());
    let targets = |_: &TensorTable| Ok(vec![SliceTarget::new("none", memory(7).1)]);
    let loaded = LoadOptions::new().load_to_device(&Solo, &buffer, &[&path], &device, &targets);
    let error = loaded.expect_err("there is no such tensor");
    assert!(matches!(error, LoadError::NoTensor { .. }), "{error}");
}
