//! Copies of a stream whose operands a thread states later.

#![allow(unsafe_code, reason = "starts copies between arrays that the tests keep")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fake_driver::{fake, new_context, new_driver, take_calls};
use crate::{BatchedCopy, CudaContext, CudaError, CudaStream, DeferredCopies};

const HOST_ADDRESSES: u32 = 91;
const LAUNCH_FAILED: u32 = 719;

pub(super) fn new_stream() -> CudaStream {
    let context = new_context();
    fake(|fake| fake.attributes.push((HOST_ADDRESSES, 1)));
    CudaStream::new(&context).expect("nothing fails")
}

/// Enqueues copies, and their end.
fn defer(
    stream: &CudaStream,
    count: u32,
    executed: impl FnOnce() + Send + 'static,
) -> Result<DeferredCopies, CudaError> {
    let copies = DeferredCopies::new(stream.context(), count)?;
    assert!(stream.enqueue_copies(&copies)?, "there is room");
    stream.enqueue_end(&copies, executed).map(|()| copies)
}

fn run() -> bool {
    fake(super::fake_driver::FakeDriver::run_deferred)
}

/// Starts a copy of `from` to `to`.
fn start(copies: &DeferredCopies, to: &mut [u8; 4], from: &[u8; 4]) -> u32 {
    let copy = BatchedCopy { to: to.as_mut_ptr() as u64, from: from.as_ptr() as u64, bytes: 4 };
    // SAFETY: the callers keep both arrays until they have run the stream.
    unsafe { copies.start(copy) }
}

fn count(name: &str) -> usize {
    take_calls().iter().filter(|call| **call == name).count()
}

#[test]
fn a_stream_copies_in_its_order_and_goes_on_after_the_last_copy() {
    let stream = new_stream();
    let has_executed = Arc::new(AtomicBool::new(false));
    let executed = has_executed.clone();
    let copies = defer(&stream, 2, move || executed.store(true, Ordering::SeqCst)).expect("nothing fails");
    assert_eq!(fake(|fake| fake.flags), 0, "at least");
    assert!(!run() && DeferredCopies::are_pending());
    let (mut first, mut second) = ([0; 4], [0; 4]);
    assert_eq!(start(&copies, &mut first, &[1; 4]), 0);
    assert_eq!((copies.has_ended(0), copies.has_ended(1)), (Ok(false), Ok(false)));
    assert!(!run());
    assert_eq!((first, copies.has_ended(0), copies.has_ended(1)), ([1; 4], Ok(true), Ok(false)));
    assert_eq!(start(&copies, &mut second, &[2; 4]), 1);
    assert!(!run());
    assert_eq!((second, copies.has_ended(1)), ([2; 4], Ok(true)));
    assert!(!has_executed.load(Ordering::SeqCst), "later work waits for the object");
    drop(copies);
    assert!(run() && has_executed.load(Ordering::SeqCst));
}

#[test]
fn a_stream_goes_on_without_the_copies_that_were_not_started() {
    let stream = new_stream();
    drop(defer(&stream, 3, || {}).expect("nothing fails"));
    assert!(run());
    let copies = defer(&stream, 3, || {}).expect("nothing fails");
    let mut copied = [0; 4];
    start(&copies, &mut copied, &[5; 4]);
    drop(copies);
    assert!(run() && copied == [5; 4]);
}

#[test]
fn memory_is_reused_once_the_stream_has_executed_the_end() {
    let stream = new_stream();
    take_calls();
    let first = defer(&stream, 2, || {}).expect("nothing fails");
    assert_eq!(count("cuMemHostRegister_v2"), 1);
    drop(first);
    let second = defer(&stream, 2, || {}).expect("nothing fails");
    assert_eq!(count("cuMemHostRegister_v2"), 1, "the stream may still read the memory of the first");
    drop(second);
    assert!(run());
    drop(defer(&stream, 2, || {}).expect("nothing fails"));
    let calls = take_calls();
    assert!(!calls.contains(&"cuMemHostRegister_v2") && !calls.contains(&"cuModuleLoadData"), "{calls:?}");
    // 128 requests and the end need two pages.
    drop(defer(&stream, 128, || {}).expect("nothing fails"));
    assert_eq!(count("cuMemHostRegister_v2"), 1);
    assert!(run());
}

#[test]
fn a_failure_leaves_nothing_to_wait_for() {
    let functions =
        ["cuStreamWaitValue32_v2", "cuLaunchKernel", "cuStreamWriteValue32_v2", "cuStreamAddCallback"];
    for function in functions {
        let stream = new_stream();
        drop(defer(&stream, 1, || {}).expect("nothing fails"));
        assert!(run());
        fake(|fake| fake.failing = vec![(function, LAUNCH_FAILED)]);
        let error = defer(&stream, 2, || {}).expect_err("it is refused");
        assert_eq!(error.code().map(crate::CudaCode::number), Some(LAUNCH_FAILED), "{error}");
        fake(|fake| fake.failing.clear());
        assert!(run(), "{function}");
        take_calls();
        drop(defer(&stream, 1, || {}).expect("nothing fails"));
        let calls = take_calls();
        // The context may have been reset.
        assert!(calls.contains(&"cuMemHostRegister_v2") && calls.contains(&"cuModuleLoadData"), "{calls:?}");
        assert!(run());
    }
}

#[test]
fn an_error_of_the_context_ends_the_copies() {
    let stream = new_stream();
    let copies = defer(&stream, 1, || {}).expect("nothing fails");
    let mut copied = [0; 4];
    start(&copies, &mut copied, &[1; 4]);
    assert_eq!(copies.has_ended(0), Ok(false));
    // A driver calls functions with the error, and does nothing else.
    fake(|fake| {
        fake.stream_error = LAUNCH_FAILED;
        fake.deferred.drain(..3);
        fake.deferred.pop_front();
        assert!(fake.run_deferred());
    });
    let error = copies.has_ended(0).expect_err("the context is broken");
    assert!(error.to_string().contains("a copy in the order of a stream"), "{error}");
}

#[test]
fn a_gpu_without_the_addresses_of_the_host_is_refused() {
    let stream = CudaStream::new(&new_context()).expect("nothing fails");
    let error = defer(&stream, 1, || {}).expect_err("the attribute is missing");
    assert!(error.to_string().contains("cannot use addresses of host memory"), "{error}");
}

#[test]
fn a_driver_without_words_has_the_other_functions() {
    let driver =
        new_driver(|fake| fake.missing = vec!["cuStreamWriteValue32_v2"]).expect("it is not needed yet");
    fake(|fake| fake.attributes.push((HOST_ADDRESSES, 1)));
    let context = CudaContext::retain(&driver.gpu(0).expect("there are two")).expect("nothing fails");
    let stream = CudaStream::new(&context).expect("nothing fails");
    assert_eq!(stream.is_capturing(), Ok(false));
    take_calls();
    let error = DeferredCopies::new(&context, 1).expect_err("it is missing");
    assert!(
        matches!(error, CudaError::MissingFunction { function: "cuStreamWriteValue32_v2", .. }),
        "{error}"
    );
    assert!(take_calls().is_empty(), "nothing was made");
}

#[test]
fn copies_that_were_not_enqueued_leave_their_memory_to_the_next() {
    let stream = new_stream();
    drop(DeferredCopies::new(stream.context(), 2).expect("nothing fails"));
    take_calls();
    drop(DeferredCopies::new(stream.context(), 2).expect("nothing fails"));
    assert_eq!(count("cuMemHostRegister_v2"), 0);
}

#[test]
fn copies_belong_to_one_stream_and_have_one_end() {
    let stream = new_stream();
    let other = CudaStream::new(stream.context()).expect("nothing fails");
    let copies = DeferredCopies::new(stream.context(), 1).expect("nothing fails");
    assert_eq!(stream.enqueue_copies(&copies), Ok(true));
    for refused in [other.enqueue_copies(&copies).map(drop), other.enqueue_end(&copies, || {})] {
        assert!(matches!(refused, Err(CudaError::Invalid { .. })), "{refused:?}");
    }
    stream.enqueue_end(&copies, || {}).expect("nothing fails");
    for refused in [stream.enqueue_copies(&copies).map(drop), stream.enqueue_end(&copies, || {})] {
        assert!(matches!(refused, Err(CudaError::Invalid { .. })), "{refused:?}");
    }
    drop(copies);
    assert!(run());
}

#[test]
fn a_copy_whose_end_the_driver_refuses_to_state_is_abandoned() {
    let stream = new_stream();
    let copies = DeferredCopies::new(stream.context(), 2).expect("nothing fails");
    fake(|fake| fake.failing = vec![("cuStreamWriteValue32_v2", LAUNCH_FAILED)]);
    stream.enqueue_copies(&copies).expect_err("it is refused");
    assert!(copies.is_abandoned(0) && copies.has_ended(0).is_err());
    assert!(!copies.is_abandoned(1) && copies.has_ended(1).is_err());
    drop(copies);
    assert!(run());
}

#[test]
fn only_the_first_copies_are_enqueued_on_a_stream_without_room() {
    let stream = new_stream();
    let others = defer(&stream, 150, || {}).expect("nothing fails");
    let copies = DeferredCopies::new(stream.context(), 90).expect("nothing fails");
    // 200 copies, and the end of each object counts as one.
    assert_eq!(stream.enqueue_copies(&copies), Ok(false));
    assert_eq!(stream.enqueue_copies(&copies), Ok(false));
    let count = |calls: &[&str]| calls.iter().filter(|call| **call == "cuLaunchKernel").count();
    assert_eq!(count(&take_calls()), 150 + 48);
    drop(others);
    assert_eq!(stream.enqueue_copies(&copies), Ok(false), "they are still in the queue");
    assert!(!run());
    assert_eq!(stream.enqueue_copies(&copies), Ok(true));
    assert_eq!(count(&take_calls()), 90 - 48);
    stream.enqueue_end(&copies, || {}).expect("nothing fails");
    copies.end();
    assert!(run());
    assert!(defer(&stream, 198, || {}).is_ok(), "nothing counts that has ended");
}

#[test]
fn copies_that_are_done_leave_their_room_to_the_same_object() {
    let stream = new_stream();
    let copies = DeferredCopies::new(stream.context(), 400).expect("nothing fails");
    assert_eq!(stream.enqueue_copies(&copies), Ok(false));
    let mut copied = [0; 4];
    for _ in 0..150 {
        start(&copies, &mut copied, &[1; 4]);
    }
    assert!(!run());
    let others = DeferredCopies::new(stream.context(), 1).expect("nothing fails");
    assert_eq!(stream.enqueue_copies(&others), Ok(false));
    take_calls();
    assert_eq!(stream.enqueue_copies(&copies), Ok(false));
    assert_eq!(take_calls().iter().filter(|call| **call == "cuLaunchKernel").count(), 150);
}

#[test]
fn a_copy_that_was_started_and_not_enqueued_is_an_error() {
    let stream = new_stream();
    let copies = DeferredCopies::new(stream.context(), 1).expect("nothing fails");
    let mut copied = [0; 4];
    start(&copies, &mut copied, &[1; 4]);
    assert_eq!(copies.has_ended(0), Ok(false));
    fake(|fake| fake.failing = vec![("cuLaunchKernel", LAUNCH_FAILED)]);
    let error = stream.enqueue_copies(&copies).expect_err("it is refused");
    assert_eq!(copies.has_ended(0), Err(error));
}
