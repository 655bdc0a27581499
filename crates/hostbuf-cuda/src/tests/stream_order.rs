//! Threads that wait for a stream.

use std::sync::mpsc;

use super::fake_driver::{fake, new_context, new_driver};
use crate::{CudaCode, CudaStream, RelaxedCapture};

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
