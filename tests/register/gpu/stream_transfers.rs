//! Transfers in the order of a stream, on a GPU and on the fake driver.

use std::fs;
use std::sync::Arc;

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, DeviceSpan, PageLockedMemory, StreamWord};
use hostbuf_staging::{CudaDevice, DeviceTarget, File, FileOptions, Ring, RingOptions, TransferError};
use hostbuf_tests::Scratch;
use hostbuf_tests::fake_cuda::with_fake_cuda;

use super::MIB;
use super::streams::first_gpu;

const BYTES: usize = 9 * MIB + 12;

fn ring(context: &CudaContext) -> Ring<CudaDevice> {
    let options = RingOptions::new().slots(3).slot_bytes(MIB).piece_bytes(MIB / 4).workers(3);
    let memory = PageLockedMemory::new(context, options.bytes().expect("valid options"));
    let device = CudaDevice::new(context).expect("a stream");
    Ring::new(device, options, memory.expect("host memory")).expect("a ring")
}

/// A stream of the program with memory on both sides.
struct Lane {
    host: PageLockedMemory,
    gpu: Arc<DeviceMemory>,
    stream: CudaStream,
}

impl Lane {
    fn new(context: &CudaContext, bytes: usize) -> Lane {
        Lane {
            host: PageLockedMemory::new(context, bytes).expect("host memory"),
            gpu: Arc::new(DeviceMemory::new(context, bytes).expect("memory of the GPU")),
            stream: CudaStream::new(context).expect("a stream"),
        }
    }

    fn target(&self) -> DeviceTarget {
        DeviceTarget::new(self.gpu.clone())
    }

    /// Waits for the stream, and fills the host memory with `byte`.
    fn fill(&self, byte: u8) {
        self.stream.synchronize().expect("it ends");
        // SAFETY: the memory has these bytes, and nothing uses it.
        unsafe { self.host.as_ptr().write_bytes(byte, self.host.bytes()) };
    }

    /// Queues copies of the host memory to the GPU, `times` times.
    fn push_copies_in(&self, times: usize) {
        let from = std::ptr::slice_from_raw_parts(self.host.as_ptr(), self.host.bytes());
        for _ in 0..times {
            // SAFETY: both sides live until the stream has ended.
            unsafe { self.stream.copy_to_device(from, self.gpu.address()) }.expect("a copy");
        }
    }

    /// Queues a copy of the memory of the GPU to the host.
    fn push_copy_out(&self) {
        let to = std::ptr::slice_from_raw_parts_mut(self.host.as_ptr(), self.host.bytes());
        let from = DeviceSpan::new(self.gpu.address(), self.host.bytes());
        // SAFETY: both sides live until the stream has ended.
        unsafe { self.stream.copy_to_host(from, to) }.expect("a copy");
    }

    fn host_has(&self, content: &[u8]) -> bool {
        self.stream.synchronize().expect("it ends");
        // SAFETY: the memory has these bytes, and the stream has ended.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.host.bytes()) == content }
    }
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 8)) as u8 | 1).collect()
}

/// Reads and writes a file between the copies of a stream.
fn keep_the_order() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("stream-transfers");
    let (from, to) = (folder.path("from"), folder.path("to"));
    let content = content(BYTES);
    fs::write(&from, &content).expect("the folder is writable");
    let (ring, lane) = (ring(&context), Lane::new(&context, BYTES));
    let source = File::open(&from).expect("it is there");
    let sink = FileOptions::new().write(true).open(&to).expect("it is made");
    for _ in 0..10 {
        lane.fill(0);
        lane.push_copies_in(20);
        let read = source.pread_on(&ring, &lane.stream, lane.target(), 0);
        let written = sink.pwrite_on(&ring, &lane.stream, lane.target(), 0);
        lane.push_copy_out();
        assert!(lane.host_has(&content), "later work has found the bytes of the file");
        assert_eq!(read.wait().expect("it is read"), BYTES as u64);
        written.wait().expect("it is written");
        assert!(fs::read(&to).expect("it was written") == content);
        lane.fill(0);
        let written = sink.pwrite_on(&ring, &lane.stream, lane.target(), 0);
        lane.push_copies_in(1);
        written.wait().expect("it is written");
        assert!(fs::read(&to).expect("it was written") == content, "later work has not begun before");
    }
    assert!(!StreamWord::are_held());
}

/// Lets streams go on after transfers that end early.
fn go_on() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("stream-transfers-early");
    let path = folder.path("file");
    fs::write(&path, content(BYTES)).expect("the folder is writable");
    let lane = Lane::new(&context, 2 * BYTES);
    let file = File::open(&path).expect("it is there");
    for _ in 0..20 {
        let ring = ring(&context);
        let short = file.pread_on(&ring, &lane.stream, lane.target(), 0);
        let cancelled = file.pread_on(&ring, &lane.stream, lane.target(), 0);
        cancelled.cancel();
        drop(file.pread_on(&ring, &lane.stream, lane.target(), 0));
        lane.stream.synchronize().expect("it ends");
        assert!(matches!(short.wait(), Err(TransferError::UnexpectedEnd { .. })));
        let left = file.pread_on(&ring, &lane.stream, lane.target(), 0);
        drop(ring);
        assert!(left.test(), "a ring that has ended holds up no stream");
        lane.stream.synchronize().expect("it ends");
    }
    assert!(!StreamWord::are_held());
}

/// Lets many streams wait for transfers of one ring, which uses the same GPU meanwhile.
fn hold_many_streams() {
    const STREAMS: usize = 64;
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("stream-transfers-many");
    let path = folder.path("file");
    let content = content(3 * MIB);
    fs::write(&path, &content).expect("the folder is writable");
    let ring = ring(&context);
    let file = File::open(&path).expect("it is there");
    let lanes: Vec<_> = (0..STREAMS).map(|_| Lane::new(&context, 3 * MIB)).collect();
    for _ in 0..5 {
        let transfers: Vec<_> = lanes
            .iter()
            .map(|lane| {
                lane.fill(0);
                lane.push_copies_in(2);
                let transfer = file.pread_on(&ring, &lane.stream, lane.target(), 0);
                lane.push_copy_out();
                transfer
            })
            .collect();
        for (lane, transfer) in lanes.iter().zip(transfers) {
            transfer.wait().expect("it is read");
            assert!(lane.host_has(&content));
        }
    }
}

#[test]
fn transfers_keep_the_order_of_a_stream_of_the_fake_driver() {
    if with_fake_cuda("gpu::stream_transfers::transfers_keep_the_order_of_a_stream_of_the_fake_driver") {
        keep_the_order();
    }
}

#[test]
fn streams_of_the_fake_driver_go_on_after_transfers_that_end_early() {
    if with_fake_cuda(
        "gpu::stream_transfers::streams_of_the_fake_driver_go_on_after_transfers_that_end_early",
    ) {
        go_on();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn transfers_keep_the_order_of_a_stream_of_a_gpu() {
    keep_the_order();
}

#[test]
#[ignore = "needs a GPU"]
fn streams_of_a_gpu_go_on_after_transfers_that_end_early() {
    go_on();
}

#[test]
#[ignore = "needs a GPU"]
fn many_streams_of_a_gpu_wait_for_one_ring() {
    hold_many_streams();
}
