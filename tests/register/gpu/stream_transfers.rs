//! Transfers in the order of a stream, on a GPU and on the fake driver.

use std::fs;
use std::sync::Arc;

use hostbuf_cuda::{CudaContext, CudaStream, DeferredCopies, DeviceMemory, DeviceSpan, PageLockedMemory};
use hostbuf_staging::{CudaDevice, DeviceTarget, File, FileOptions, Ring, RingOptions, TransferError};
use hostbuf_tests::Scratch;
use hostbuf_tests::fake_cuda::with_fake_cuda;

use super::MIB;
use super::streams::first_gpu;

const BYTES: usize = 9 * MIB + 12;

fn ring(context: &CudaContext) -> Ring<CudaDevice> {
    ring_with(context, RingOptions::new().slots(3).slot_bytes(MIB).piece_bytes(MIB / 4).workers(3))
}

fn ring_with(context: &CudaContext, options: RingOptions) -> Ring<CudaDevice> {
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
    assert!(!DeferredCopies::are_pending());
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
    assert!(!DeferredCopies::are_pending());
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

/// Lets streams wait for transfers of a ring with one thread, beside transfers that no stream waits
/// for, and that take all the other slots.
fn hold_streams_beside_other_transfers() {
    const STREAMS: usize = 12;
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("stream-transfers-beside");
    let path = folder.path("file");
    let content = content(3 * MIB);
    fs::write(&path, &content).expect("the folder is writable");
    let ring = ring_with(&context, RingOptions::new().slots(2).slot_bytes(MIB).piece_bytes(MIB).workers(1));
    let file = File::open(&path).expect("it is there");
    let lanes: Vec<_> = (0..STREAMS).map(|_| Lane::new(&context, 3 * MIB)).collect();
    let others: Vec<_> = (0..STREAMS).map(|_| Lane::new(&context, 3 * MIB)).collect();
    for _ in 0..5 {
        let transfers: Vec<_> = lanes
            .iter()
            .zip(&others)
            .map(|(lane, other)| {
                lane.fill(0);
                lane.push_copies_in(2);
                let before = file.pread(&ring, other.target(), 0);
                let held = file.pread_on(&ring, &lane.stream, lane.target(), 0);
                let after = file.pread(&ring, other.target(), 0);
                lane.push_copy_out();
                [before, held, after]
            })
            .collect();
        for (lane, transfers) in lanes.iter().zip(transfers) {
            for transfer in transfers {
                transfer.wait().expect("it is read");
            }
            assert!(lane.host_has(&content));
        }
        for other in &others {
            other.push_copy_out();
            assert!(other.host_has(&content));
        }
    }
}

/// Gives one stream more transfers, and one transfer with more slots, than a queue of the GPU has
/// room for, beside a transfer of the ring's own stream.
fn give_more_than_a_queue_has_room_for() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("stream-transfers-room");
    let path = folder.path("file");
    let content = content(3 * MIB);
    fs::write(&path, &content).expect("the folder is writable");
    let ring = ring_with(&context, RingOptions::new().slots(3).slot_bytes(4096).piece_bytes(4096).workers(2));
    let file = File::open(&path).expect("it is there");
    let (lane, other) = (Lane::new(&context, 3 * MIB), Lane::new(&context, 3 * MIB));
    lane.fill(0);
    lane.push_copies_in(20);
    let short = lane.target().part(0..4096).expect("it is in the memory");
    let beside = file.pread(&ring, other.target(), 0);
    let mut transfers: Vec<_> =
        (0..600).map(|_| file.pread_on(&ring, &lane.stream, short.clone(), 0)).collect();
    // 768 slots.
    transfers.push(file.pread_on(&ring, &lane.stream, lane.target(), 0));
    lane.push_copy_out();
    for transfer in transfers {
        transfer.wait().expect("it is read");
    }
    assert!(lane.host_has(&content));
    beside.wait().expect("it is read");
    other.push_copy_out();
    assert!(other.host_has(&content));
    assert!(!DeferredCopies::are_pending());
}

/// Reads and writes ranges whose addresses have any alignment.
fn copy_at_any_alignment() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("stream-transfers-alignment");
    let (from, to) = (folder.path("from"), folder.path("to"));
    let content = content(BYTES);
    fs::write(&from, &content).expect("the folder is writable");
    let (ring, lane) = (ring(&context), Lane::new(&context, BYTES));
    let source = File::open(&from).expect("it is there");
    let sink = FileOptions::new().write(true).open(&to).expect("it is made");
    for (offset, start, bytes) in [
        (0, 0, 1),
        (0, 1, 15),
        (5, 5, 4 * MIB + 3),
        (4, 12, MIB),
        (1, 2, MIB + 5),
        (16, 0, 31),
        (7, 3, 2 * MIB),
    ] {
        lane.fill(0);
        lane.push_copies_in(1);
        let target = || lane.target().part(start..start + bytes as u64).expect("it is in the memory");
        let read = source.pread_on(&ring, &lane.stream, target(), offset as u64);
        let written = sink.pwrite_on(&ring, &lane.stream, target(), offset as u64);
        lane.push_copy_out();
        let mut expected = vec![0; BYTES];
        let range = offset..offset + bytes;
        expected[start as usize..][..bytes].copy_from_slice(&content[range.clone()]);
        assert!(lane.host_has(&expected), "{bytes} bytes from {offset} to {start}");
        read.wait().expect("it is read");
        written.wait().expect("it is written");
        assert!(fs::read(&to).expect("it was written")[range.clone()] == content[range]);
    }
}

/// Refuses a ring that has no slot to reserve.
fn refuse_a_ring_of_one_slot() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("stream-transfers-one-slot");
    let path = folder.path("file");
    fs::write(&path, content(MIB)).expect("the folder is writable");
    let ring = ring_with(&context, RingOptions::new().slots(1).slot_bytes(MIB).workers(1));
    let lane = Lane::new(&context, MIB);
    let file = File::open(&path).expect("it is there");
    let error = file.pread_on(&ring, &lane.stream, lane.target(), 0).wait().expect_err("it has one slot");
    assert!(error.to_string().contains("make it with at least two"), "{error}");
    lane.stream.synchronize().expect("it has no work");
    file.pread_after(&ring, &lane.stream, lane.target(), 0).wait().expect("the stream does not wait");
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

#[test]
fn many_streams_of_the_fake_driver_wait_for_one_ring() {
    if with_fake_cuda("gpu::stream_transfers::many_streams_of_the_fake_driver_wait_for_one_ring") {
        hold_many_streams();
    }
}

#[test]
fn streams_of_the_fake_driver_wait_beside_other_transfers() {
    if with_fake_cuda("gpu::stream_transfers::streams_of_the_fake_driver_wait_beside_other_transfers") {
        hold_streams_beside_other_transfers();
    }
}

#[test]
fn the_fake_driver_copies_ranges_of_any_alignment() {
    if with_fake_cuda("gpu::stream_transfers::the_fake_driver_copies_ranges_of_any_alignment") {
        copy_at_any_alignment();
    }
}

#[test]
fn the_fake_driver_has_no_order_for_a_ring_of_one_slot() {
    if with_fake_cuda("gpu::stream_transfers::the_fake_driver_has_no_order_for_a_ring_of_one_slot") {
        refuse_a_ring_of_one_slot();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn streams_of_a_gpu_wait_beside_other_transfers() {
    hold_streams_beside_other_transfers();
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_copies_ranges_of_any_alignment() {
    copy_at_any_alignment();
}

#[test]
fn a_stream_of_the_fake_driver_is_given_more_than_a_queue_has_room_for() {
    if with_fake_cuda(
        "gpu::stream_transfers::a_stream_of_the_fake_driver_is_given_more_than_a_queue_has_room_for",
    ) {
        give_more_than_a_queue_has_room_for();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_stream_of_a_gpu_is_given_more_than_a_queue_has_room_for() {
    give_more_than_a_queue_has_room_for();
}
