//! Copies of rows at equal distances, on a GPU and on the fake driver.

#![allow(unsafe_code, reason = "copies are unsafe")]

use std::fs;

use hostbuf_cuda::{
    CudaCode, CudaContext, CudaStream, DeviceMemory, DeviceSpan, PageLockedMemory, PitchedCopy,
};
use hostbuf_staging::{CopyDevice, CudaDevice, DeviceRows};
use hostbuf_tests::fake_cuda::{NO_ROWS, with_fake_cuda};

use super::streams::first_gpu;

/// Rows, with their pitches in host memory and on the GPU.
#[derive(Clone, Copy, Debug)]
struct RowShape {
    width: usize,
    height: usize,
    host_pitch: usize,
    pitch: usize,
}

const fn shape(width: usize, height: usize, host_pitch: usize, pitch: usize) -> RowShape {
    RowShape { width, height, host_pitch, pitch }
}

/// Rows of odd and of even lengths, dense on the GPU or with gaps, and one row.
const SHAPES: [RowShape; 7] = [
    shape(1, 1000, 3, 1),
    shape(7, 999, 1001, 7),
    shape(512, 300, 4096, 512),
    shape(513, 300, 2049, 1000),
    shape(4096, 300, 8192, 4096),
    shape(100_000, 1, 100_000, 100_000),
    shape(640, 500, 640, 640),
];

/// The length of the host memory, and of that of the GPU.
const BYTES: usize = 3 << 20;

/// Checks that the rows, and nothing else, have changed on the GPU.
fn check(stream: &CudaStream, memory: &DeviceMemory, host: &[u8], shape: RowShape) {
    let mut found = vec![0; BYTES];
    // SAFETY: both sides live until the stream has been waited for.
    unsafe { stream.copy_to_host(memory.span(), &raw mut *found) }.expect("a copy");
    stream.synchronize().expect("it ends");
    let mut expected = vec![0xee; BYTES];
    for row in 0..shape.height {
        expected[row * shape.pitch..][..shape.width]
            .copy_from_slice(&host[row * shape.host_pitch..][..shape.width]);
    }
    assert!(found == expected, "{shape:?}");
}

/// Copies rows of all shapes by a stream and by a device, and compares them.
fn copy_rows() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let device = CudaDevice::new(&context).expect("a device");
    let stream = device.stream();
    let memory = DeviceMemory::new(&context, BYTES).expect("memory of the GPU");
    let locked = PageLockedMemory::new(&context, BYTES).expect("page-locked memory");
    // SAFETY: the memory lives longer, and nothing else uses it.
    let host = unsafe { std::slice::from_raw_parts_mut(locked.as_ptr(), BYTES) };
    for (at, byte) in host.iter_mut().enumerate() {
        *byte = (at % 211) as u8;
    }
    let background = vec![0xee; BYTES];
    let clear = || {
        // SAFETY: both sides live until the stream has been waited for.
        unsafe { stream.copy_to_device(&raw const *background, memory.address()) }.expect("a copy");
        stream.synchronize().expect("it ends");
    };
    for shape in SHAPES {
        let RowShape { width, height, host_pitch, pitch } = shape;
        clear();
        let from = &raw const host[..(height - 1) * host_pitch + width];
        let to = DeviceSpan::new(memory.address(), (height - 1) * pitch + width);
        let copy = PitchedCopy { from, from_pitch: host_pitch, to, to_pitch: pitch, width, height };
        // SAFETY: both sides live until the stream has been waited for, as `check` does.
        unsafe { stream.copy_rows_to_device(&copy) }.expect("a copy");
        check(stream, &memory, host, shape);
        clear();
        let (host_start, address) = (host.as_mut_ptr(), memory.address());
        let rows = DeviceRows { host: host_start, host_pitch, address, pitch, width, height };
        let done = device.new_event().expect("an event");
        // SAFETY: as above.
        unsafe { device.copy_rows_to_device(&[rows], &done) }.expect("a copy");
        device.wait(&done).expect("it ends");
        check(stream, &memory, host, shape);
    }
}

#[test]
fn rows_move_on_the_fake_driver() {
    if with_fake_cuda("gpu::row_copies::rows_move_on_the_fake_driver") {
        copy_rows();
    }
}

#[test]
fn rows_that_the_driver_refuses_are_an_error() {
    if !with_fake_cuda("gpu::row_copies::rows_that_the_driver_refuses_are_an_error") {
        return;
    }
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let device = CudaDevice::new(&context).expect("a device");
    let memory = DeviceMemory::new(&context, 64).expect("memory of the GPU");
    let mut host = [7; 128];
    let rows = DeviceRows {
        host: host.as_mut_ptr(),
        host_pitch: 16,
        address: memory.address(),
        pitch: 8,
        width: 8,
        height: 8,
    };
    let done = device.new_event().expect("an event");
    let flag = std::env::var_os(NO_ROWS).expect("set for this process");
    fs::write(&flag, "").expect("a new folder");
    // SAFETY: both sides live until the copies have ended.
    let error = unsafe { device.copy_rows_to_device(&[rows], &done) }.expect_err("the driver refuses");
    let text = error.to_string();
    assert!(text.contains("cuMemcpy2DAsync of 8 rows of 8 bytes") && !error.is_lost(), "{text}");
    assert!(text.contains(&CudaCode::OUT_OF_MEMORY.number().to_string()), "{text}");
    fs::remove_file(&flag).expect("it is there");
    // A distance that no GPU supports: the rows are copied one by one.
    let single = DeviceRows { host_pitch: PitchedCopy::LARGEST_PITCH + 1, height: 1, ..rows };
    // SAFETY: as above.
    unsafe { device.copy_rows_to_device(&[single, rows], &done) }.expect("both kinds of copies");
    device.wait(&done).expect("it ends");
}

#[test]
#[ignore = "needs a GPU"]
fn rows_move_on_a_gpu() {
    copy_rows();
}
