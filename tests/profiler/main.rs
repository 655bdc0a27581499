//! Ranges in the timeline of a profiler (feature `nvtx`). A library takes the profiler's place
//! (tests/fixtures/nvtx_injection.c).

mod recorded_ranges;

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, Pages};
use hostbuf_cuda::{CudaContext, DeviceMemory, Driver, PageLockedMemory};
use hostbuf_load::LoadOptions;
use hostbuf_staging::{
    Backend, BorrowedMemory, CopyDevice, CudaDevice, DeviceTarget, File, FileOptions, HostMemory, ReadAt,
    Ring, RingOptions,
};
use hostbuf_tests::fake_cuda::{PENDING, with_fake_cuda};
use hostbuf_tests::{Scratch, eventually};

use recorded_ranges::{RangeEvents, events_so_far};

const PIECE: usize = 1 << 16;
const SLOT: usize = 4 * PIECE;
/// The number of bytes of a file. The last slot and the last piece are not full.
const BYTES: usize = 9 * SLOT + PIECE + 1234;
const LIMIT: Duration = Duration::from_secs(60);

fn options() -> RingOptions {
    RingOptions::new().slots(2).slot_bytes(SLOT).piece_bytes(PIECE).workers(3)
}

/// Reads a file into memory of a device, and writes it to another file.
fn move_file<D: CopyDevice>(ring: &Ring<D>, folder: &Scratch, memory: &DeviceTarget) {
    fs::write(folder.path("from"), vec![7; BYTES]).expect("the folder is writable");
    let open = FileOptions::new().backend(Backend::Posix);
    let from = open.open(folder.path("from")).expect("it is there");
    let to = open.write(true).open(folder.path("to")).expect("it is made");
    assert_eq!(from.pread(ring, memory.clone(), 0).wait().expect("it is read"), BYTES as u64);
    assert_eq!(to.pwrite(ring, memory.clone(), 0).wait().expect("it is written"), BYTES as u64);
}

#[test]
fn a_transfer_of_a_gpu_has_ranges_for_its_steps() {
    const NAME: &str = "a_transfer_of_a_gpu_has_ranges_for_its_steps";
    if let Some(events) = RangeEvents::of_test(NAME) {
        let read = events.one("read ", "/from");
        assert_eq!(read, BYTES as u64);
        assert_eq!(events.one("write ", "/to"), BYTES as u64);
        let pieces = BYTES.div_ceil(PIECE);
        for name in ["read piece", "write piece"] {
            assert_eq!(events.sum(name), (pieces, BYTES as u64), "{name}");
        }
        for name in ["copy to device", "copy to host"] {
            assert_eq!(events.sum(name), (BYTES.div_ceil(SLOT), BYTES as u64), "{name}");
        }
        return events.check();
    }
    if with_fake_cuda(NAME) {
        let gpu = Driver::find().and_then(|driver| driver.gpu(0)).expect("the fake driver");
        let context = CudaContext::retain(&gpu).expect("nothing fails");
        let memory = PageLockedMemory::new(&context, options().bytes().expect("valid options"));
        let device = CudaDevice::new(&context).expect("a stream");
        let ring = Ring::new(device, options(), memory.expect("host memory")).expect("a ring");
        let target = DeviceTarget::new(Arc::new(DeviceMemory::new(&context, BYTES).expect("nothing fails")));
        move_file(&ring, &Scratch::new("profiler-gpu"), &target);
    }
}

#[test]
fn a_wait_for_a_device_has_a_range() {
    const NAME: &str = "a_wait_for_a_device_has_a_range";
    if let Some(events) = RangeEvents::of_test(NAME) {
        assert!(events.sum("wait for device").0 > 0);
        return events.check();
    }
    if with_fake_cuda(NAME) {
        let gpu = Driver::find().and_then(|driver| driver.gpu(0)).expect("the fake driver");
        let ring = Ring::for_gpu(&gpu, options()).expect("a ring");
        let context = ring.device().stream().context();
        let target = DeviceTarget::new(Arc::new(DeviceMemory::new(context, BYTES).expect("nothing fails")));
        let folder = Scratch::new("profiler-wait");
        fs::write(folder.path("from"), vec![7; BYTES]).expect("the folder is writable");
        let file = File::open(folder.path("from")).expect("it is there");
        let pending = std::env::var(PENDING).expect("the driver's variable");
        fs::write(&pending, "").expect("the folder is writable");
        let transfer = file.pread(&ring, target, 0);
        eventually("a thread waits", LIMIT, || events_so_far().contains("wait for device"));
        fs::remove_file(&pending).expect("it is there");
        transfer.wait().expect("it is read");
    }
}

/// A source whose bytes are there once a thread waits for a slot.
struct LateBytes;

impl ReadAt for LateBytes {
    fn name(&self) -> String {
        "late bytes".into()
    }

    fn read_at(&self, into: &mut [u8], _: u64) -> io::Result<usize> {
        eventually("a thread waits", LIMIT, || events_so_far().contains("wait for slot"));
        into.fill(1);
        Ok(into.len())
    }
}

#[test]
fn a_ring_of_the_host_and_a_load_have_ranges() {
    const NAME: &str = "a_ring_of_the_host_and_a_load_have_ranges";
    if let Some(events) = RangeEvents::of_test(NAME) {
        assert!(events.sum("wait for slot").0 > 0);
        assert_eq!(events.one("read late bytes", ""), 2 * PIECE as u64);
        assert_eq!(events.one("read ", "/from"), BYTES as u64);
        assert_eq!(events.one("load weights", ""), 0);
        // A load reads the file once more, in pieces of its own.
        assert_eq!(events.sum("read piece").1, 2 * (PIECE + BYTES) as u64);
        assert_eq!(events.sum("copy to device").0, 0);
        return events.check();
    }
    if std::env::var_os(recorded_ranges::LOG).is_some() {
        let one_slot = RingOptions::new().slots(1).slot_bytes(PIECE).piece_bytes(PIECE).workers(2);
        let host = |bytes| DeviceTarget::new(Arc::new(BorrowedMemory::from(HostMemory::new(bytes))));
        let ring = Ring::for_host(one_slot).expect("a ring");
        ring.read(Arc::new(LateBytes), 0, host(2 * PIECE)).wait().expect("it is read");
        let folder = Scratch::new("profiler-host");
        let ring = Ring::for_host(options()).expect("a ring");
        move_file(&ring, &folder, &host(BYTES));
        let buffer = BufferOptions::new(0).name("weights").pages(Pages::Small);
        let loaded = LoadOptions::new().backend(Backend::Posix).allocate_and_load(
            &Solo,
            buffer,
            &[folder.path("from")],
        );
        assert_eq!(loaded.expect("it is read").counters().file_bytes, BYTES as u64);
    }
}
