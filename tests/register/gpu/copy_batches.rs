//! Many copies of odd lengths by one call each way, on a GPU and on the fake driver.

#![allow(unsafe_code, reason = "copies are unsafe")]

use hostbuf_cuda::{BatchedCopy, CopyBatch, CudaContext, CudaStream, DeviceMemory, PageLockedMemory};
use hostbuf_tests::fake_cuda::with_fake_cuda;

use super::streams::first_gpu;

/// The number of copies.
const COPIES: usize = 1000;
/// The gap between two targets.
const GAP: usize = 5;

/// Copies lengths of 1 to 1000 bytes from `host` to the GPU and back, and compares them.
fn move_lengths(context: &CudaContext, host: &mut [u8]) {
    let stream = CudaStream::new(context).expect("a stream");
    let batch = CopyBatch::find(context.driver()).expect("the driver supports CUDA 12.8");
    let half = host.len() / 2;
    let memory = DeviceMemory::new(context, half).expect("memory of the GPU");
    for (at, byte) in host[..half].iter_mut().enumerate() {
        *byte = (at % 251 + 1) as u8;
    }
    host[half..].fill(0);
    let (start, mut at) = (host.as_mut_ptr() as u64, 0);
    let ranges: Vec<(u64, usize)> = (1..=COPIES)
        .map(|bytes| {
            let range = (at as u64, bytes);
            at += bytes + GAP;
            range
        })
        .collect();
    assert!(at <= half, "{at} bytes are needed");
    let to_gpu =
        ranges.iter().map(|&(at, bytes)| BatchedCopy { to: memory.address() + at, from: start + at, bytes });
    let back = ranges.iter().map(|&(at, bytes)| BatchedCopy {
        to: start + half as u64 + at,
        from: memory.address() + at,
        bytes,
    });
    // SAFETY: the host memory and that of the GPU live until the stream has been waited for, and
    // nothing else uses them.
    unsafe {
        batch.start(&stream, to_gpu).expect("the copies start");
        batch.start(&stream, back).expect("the copies start");
    }
    stream.synchronize().expect("the copies end");
    let (sent, found) = host.split_at(half);
    for &(at, bytes) in &ranges {
        let (at, end) = (at as usize, at as usize + bytes);
        assert!(found[at..end] == sent[at..end], "{bytes} bytes at {at}");
        assert_eq!(found[end..end + GAP], [0; GAP], "behind {bytes} bytes at {at}");
    }
}

fn move_all() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let bytes = 2 * COPIES * (COPIES / 2 + GAP + 1);
    let locked = PageLockedMemory::new(&context, bytes).expect("page-locked memory");
    // SAFETY: the memory lives longer, and nothing else uses it.
    move_lengths(&context, unsafe { std::slice::from_raw_parts_mut(locked.as_ptr(), bytes) });
    // Memory that is not page-locked is copied too, only more slowly.
    let mut pageable = vec![0; bytes];
    move_lengths(&context, &mut pageable);
}

#[test]
fn batches_of_copies_move_on_the_fake_driver() {
    if with_fake_cuda("gpu::copy_batches::batches_of_copies_move_on_the_fake_driver") {
        move_all();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn batches_of_copies_move_on_a_gpu() {
    move_all();
}
