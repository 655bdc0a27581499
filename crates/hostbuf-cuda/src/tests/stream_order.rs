//! Threads that wait for a stream, and streams that wait for a thread.

use std::sync::mpsc;

use super::fake_driver::{fake, new_context, new_driver, take_calls};
use crate::{CudaCode, CudaContext, CudaError, CudaStream, RelaxedCapture, StreamWord};

const LAUNCH_FAILED: u32 = 719;

#[test]
fn a_function_is_called_once_with_the_error_of_the_stream() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    let (results, called) = mpsc::channel();
    for (code, expected) in [(0, None), (LAUNCH_FAILED, Some(LAUNCH_FAILED))] {
        fake(|fake| fake.stream_error = code);
        let results = results.clone();
        stream.call_after(move |error| results.send(error).expect("it is received")).expect("nothing fails");
        assert_eq!(called.try_recv().map(|error| error.map(CudaCode::number)), Ok(expected));
    }
    fake(|fake| fake.failing = vec![("cuStreamAddCallback", LAUNCH_FAILED)]);
    assert!(stream.call_after(move |_| results.send(None).expect("it is received")).is_err());
    // The function was dropped, and never called.
    assert_eq!(called.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

#[test]
fn a_stream_that_is_captured_says_so() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    assert_eq!(stream.is_capturing(), Ok(false));
    fake(|fake| fake.is_capturing = true);
    assert_eq!(stream.is_capturing(), Ok(true));
}

#[test]
fn the_mode_for_calls_beside_a_capture_returns() {
    const GLOBAL: u32 = 0;
    const RELAXED: u32 = 2;
    let context = new_context();
    fake(|fake| assert_eq!(fake.capture_mode, GLOBAL));
    let relaxed = RelaxedCapture::begin(context.driver());
    fake(|fake| assert_eq!(fake.capture_mode, RELAXED));
    let again = RelaxedCapture::begin(context.driver());
    drop(again);
    fake(|fake| assert_eq!(fake.capture_mode, RELAXED));
    drop(relaxed);
    fake(|fake| assert_eq!(fake.capture_mode, GLOBAL));
}

#[test]
fn a_driver_without_modes_for_captures_needs_none() {
    let driver = new_driver(|fake| fake.missing = vec!["cuThreadExchangeStreamCaptureMode"]);
    drop(RelaxedCapture::begin(driver.expect("it is not needed")));
}

#[test]
fn a_word_that_is_used_again_has_a_greater_number() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    take_calls();
    let first = StreamWord::new(&context).expect("nothing fails");
    assert!(take_calls().contains(&"cuMemHostRegister_v2") && StreamWord::are_held());
    stream.wait_for_word(&first).expect("nothing fails");
    let waits = fake(|fake| fake.operands.clone());
    assert_eq!((waits[0], waits[2], waits[3]), (stream.handle().0 as u64, 1, 0), "GEQ 1");
    drop(first);
    assert!(!StreamWord::are_held());
    let (second, other) = (StreamWord::new(&context), StreamWord::new(&context));
    let (second, other) = (second.expect("nothing fails"), other.expect("nothing fails"));
    stream.wait_for_word(&second).expect("nothing fails");
    let again = fake(|fake| fake.operands.clone());
    assert_eq!((again[1], again[2]), (waits[1], 2));
    stream.wait_for_word(&other).expect("nothing fails");
    assert_ne!(fake(|fake| fake.operands[1]), waits[1]);
    assert!(!take_calls().contains(&"cuMemHostRegister_v2"), "a page has many words");
}

#[test]
fn a_word_that_was_discarded_is_not_used_again() {
    let context = new_context();
    let registrations = || take_calls().iter().filter(|name| **name == "cuMemHostRegister_v2").count();
    let word = StreamWord::new(&context).expect("nothing fails");
    assert_eq!(registrations(), 1);
    drop(word);
    drop(StreamWord::new(&context).expect("nothing fails"));
    assert_eq!(registrations(), 0, "the words of a page are used again");
    StreamWord::new(&context).expect("nothing fails").discard();
    drop(StreamWord::new(&context).expect("nothing fails"));
    assert_eq!(registrations(), 1, "the page of a word that failed is not");
}

#[test]
fn a_driver_without_words_has_the_other_functions() {
    let driver =
        new_driver(|fake| fake.missing = vec!["cuStreamWaitValue32_v2"]).expect("it is not needed yet");
    let context = CudaContext::retain(&driver.gpu(0).expect("there are two")).expect("nothing fails");
    let stream = CudaStream::new(&context).expect("nothing fails");
    assert_eq!(stream.is_capturing(), Ok(false));
    let word = StreamWord::new(&context).expect("nothing fails");
    let error = stream.wait_for_word(&word).expect_err("it is missing");
    assert!(
        matches!(error, CudaError::MissingFunction { function: "cuStreamWaitValue32_v2", .. }),
        "{error}"
    );
    word.discard();
}
