//! Many copies by one call.

#![allow(unsafe_code, reason = "copies are unsafe")]

use super::fake_driver::{
    INVALID_VALUE, OUT_OF_MEMORY, assert_nothing_remains, fake, new_context, new_driver, take_calls,
};
use crate::{BatchedCopy, CopyBatch, CudaCode, CudaContext, CudaError, CudaStream};

const FUNCTIONS: [&str; 2] = ["cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync"];

/// Makes copies of 1, 2, 3 ... bytes.
fn copies(count: u64) -> Vec<BatchedCopy> {
    let copy = |number| BatchedCopy { to: 0x9000 + number, from: 0x100 + number, bytes: number as usize + 1 };
    (0..count).map(copy).collect()
}

/// Starts copies by a driver that lacks functions. Returns the calls, with the copies in
/// `FakeDriver::operands`.
fn started(missing: &[&'static str], copies: &[BatchedCopy]) -> Vec<&'static str> {
    let driver = new_driver(|fake| fake.missing = missing.to_vec()).expect("it is not needed yet");
    let context = CudaContext::retain(&driver.gpu(0).expect("there are two")).expect("nothing fails");
    let stream = CudaStream::new(&context).expect("nothing fails");
    take_calls();
    let batch = CopyBatch::find(driver).expect("it has one of the functions");
    // SAFETY: the fake driver copies nothing.
    unsafe { batch.start(&stream, copies.iter().copied()) }.expect("nothing fails");
    let calls = take_calls();
    drop((stream, context));
    assert_nothing_remains();
    calls
}

fn operands(copies: &[BatchedCopy]) -> Vec<u64> {
    copies.iter().flat_map(|copy| [copy.to, copy.from, copy.bytes as u64]).collect()
}

#[test]
fn a_call_starts_256_copies_at_most() {
    for (count, calls) in [(0, 0), (1, 1), (256, 1), (257, 2), (1000, 4)] {
        let copies = copies(count);
        assert_eq!(started(&[], &copies), vec![FUNCTIONS[0]; calls], "{count} copies");
        assert_eq!(fake(|fake| fake.operands.clone()), operands(&copies), "{count} copies");
    }
}

#[test]
fn copies_of_no_bytes_are_left_out() {
    let mut with_empty = copies(300);
    let empty = BatchedCopy { to: 0, from: 0, bytes: 0 };
    with_empty.extend([empty; 2]);
    with_empty.insert(7, empty);
    assert_eq!(started(&[], &with_empty).len(), 2);
    assert_eq!(fake(|fake| fake.operands.clone()), operands(&copies(300)));
    assert_eq!(started(&[], &[empty; 3]), [""; 0]);
}

#[test]
fn a_driver_before_cuda_13_has_the_older_function() {
    let copies = copies(2);
    assert_eq!(started(&FUNCTIONS[..1], &copies), [FUNCTIONS[1]]);
    assert_eq!(fake(|fake| fake.operands.clone()), operands(&copies));
    let driver = new_driver(|fake| fake.missing = FUNCTIONS.to_vec()).expect("it is not needed");
    assert!(CopyBatch::find(driver).is_none());
}

#[test]
fn a_call_that_fails_is_the_last_one() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    let batch = CopyBatch::find(context.driver()).expect("it has the function");
    for failing in 0..2 {
        fake(|fake| fake.failing_call = Some(failing));
        take_calls();
        // SAFETY: the fake driver copies nothing.
        let error = unsafe { batch.start(&stream, copies(600)) }.expect_err("one call fails");
        assert_eq!(take_calls().len(), failing + 1);
        assert!(error.code() == CudaCode::of(OUT_OF_MEMORY), "{error}");
        let text = error.without_host();
        assert!(text.starts_with("cuMemcpyBatchAsync of 256 copies, "), "{text}");
    }
    fake(|fake| fake.failing = vec![(FUNCTIONS[0], INVALID_VALUE)]);
    // SAFETY: the fake driver copies nothing.
    let error = unsafe { batch.start(&stream, copies(1)) }.expect_err("the call fails");
    assert!(matches!(error, CudaError::Call { .. }), "{error}");
    drop((stream, context));
    assert_nothing_remains();
}
