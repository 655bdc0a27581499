//! Streams, copies on them, and events.

#![allow(unsafe_code, reason = "copies and streams of others are unsafe")]

use std::time::Duration;

use super::fake_driver::{ILLEGAL_ADDRESS, NOT_READY, assert_nothing_remains, fake, new_context, take_calls};
use crate::{
    BorrowedStream, CudaCode, CudaContext, CudaError, CudaEvent, CudaStream, DeviceSpan, StreamHandle,
};

#[test]
fn copies_pass_their_operands_in_the_drivers_order() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    assert_eq!(fake(|fake| fake.flags), 1, "CU_STREAM_NON_BLOCKING");
    let handle = stream.handle().0 as u64;
    let mut host = [0u8; 24];
    let at = host.as_ptr() as u64;
    // SAFETY: the fake driver copies nothing.
    unsafe {
        stream.copy_to_device(&raw const host[..], 0x9000).expect("nothing fails");
        assert_eq!(fake(|fake| fake.operands.clone()), [0x9000, at, 24, handle]);
        stream.copy_to_host(DeviceSpan::new(0x9000, 24), &raw mut host[..]).expect("nothing fails");
        assert_eq!(fake(|fake| fake.operands.clone()), [at, 0x9000, 24, handle]);
        stream.copy_on_device(DeviceSpan::new(0x9000, 24), 0xa000).expect("nothing fails");
        assert_eq!(fake(|fake| fake.operands.clone()), [0xa000, 0x9000, 24, handle]);
    }
    drop((stream, context));
    assert_nothing_remains();
}

#[test]
#[should_panic(expected = "a copy has one length")]
fn a_copy_of_another_length_than_its_target_panics() {
    let mut host = [0u8; 24];
    let stream = CudaStream::new(&new_context()).expect("nothing fails");
    // SAFETY: the fake driver copies nothing.
    let _ = unsafe { stream.copy_to_host(DeviceSpan::new(0x9000, 25), &raw mut host[..]) };
}

#[test]
fn a_stream_of_others_is_used_and_not_destroyed() {
    let context = new_context();
    let event = CudaEvent::new(&context).expect("nothing fails");
    for handle in [StreamHandle::DEFAULT, StreamHandle::LEGACY, StreamHandle::PER_THREAD] {
        // SAFETY: default streams exist always.
        let stream = unsafe { BorrowedStream::from_raw(&context, handle) }.expect("it has streams");
        event.record(&stream).expect("nothing fails");
        assert_eq!(fake(|fake| fake.operands[0]), handle.0 as u64);
        stream.wait(&event).expect("nothing fails");
    }
    drop((event, context));
    assert!(!take_calls().contains(&"cuStreamDestroy_v2"));
    assert_nothing_remains();
}

#[test]
fn an_event_records_the_default_stream_of_the_streams_context() {
    let context = new_context();
    let other = CudaContext::retain(&context.driver().gpu(1).expect("there are two")).expect("nothing fails");
    let event = CudaEvent::new(&context).expect("nothing fails");
    let recorded = |context| {
        // SAFETY: default streams exist always.
        let stream = unsafe { BorrowedStream::from_raw(context, StreamHandle::DEFAULT) };
        event.record(&stream.expect("it has streams")).expect("nothing fails");
        fake(|fake| fake.operands[1])
    };
    assert_ne!(recorded(&context), recorded(&other));
}

#[test]
fn a_stream_needs_no_current_context_unless_the_driver_demands_one() {
    let context = new_context();
    let (stream, event) =
        (CudaStream::new(&context).expect("nothing fails"), CudaEvent::new(&context).expect("nothing fails"));
    for finds_contexts in [true, false] {
        fake(|fake| fake.finds_contexts = finds_contexts);
        event.record(&stream).expect("nothing fails");
        assert_eq!(fake(|fake| fake.operands[1] == 0), finds_contexts, "no context was current");
        stream.wait(&event).expect("nothing fails");
    }
    // A default stream is that of the current context.
    fake(|fake| fake.finds_contexts = true);
    // SAFETY: default streams exist always.
    let default = unsafe { BorrowedStream::from_raw(&context, StreamHandle::DEFAULT) };
    event.record(&default.expect("it has streams")).expect("nothing fails");
    assert_ne!(fake(|fake| fake.operands[1]), 0);
}

#[test]
fn unfinished_work_is_no_error() {
    let context = new_context();
    let (stream, event) =
        (CudaStream::new(&context).expect("nothing fails"), CudaEvent::new(&context).expect("nothing fails"));
    assert_eq!((stream.is_idle(), event.is_complete()), (Ok(true), Ok(true)));
    fake(|fake| fake.failing = vec![("cuStreamQuery", NOT_READY), ("cuEventQuery", NOT_READY)]);
    assert_eq!((stream.is_idle(), event.is_complete()), (Ok(false), Ok(false)));
    fake(|fake| fake.failing = vec![("cuStreamQuery", ILLEGAL_ADDRESS), ("cuEventQuery", ILLEGAL_ADDRESS)]);
    for error in [stream.is_idle(), event.is_complete()] {
        assert!(error.is_err_and(|error| error.code().is_some_and(CudaCode::is_context_broken)));
    }
    fake(|fake| fake.failing.clear());
    assert_eq!((stream.synchronize(), event.synchronize()), (Ok(()), Ok(())));
}

#[test]
fn only_events_with_timing_measure() {
    let context = new_context();
    let timed = || CudaEvent::with_timing(&context).expect("nothing fails");
    let (start, end) = (timed(), timed());
    assert_eq!(fake(|fake| fake.flags), 0, "CU_EVENT_DEFAULT");
    // The fake driver's handles are 16 apart.
    assert_eq!(end.elapsed_since(&start), Ok(Duration::from_millis(16)));
    assert_eq!(start.elapsed_since(&end), Ok(Duration::ZERO));
    let plain = CudaEvent::new(&context).expect("nothing fails");
    assert_eq!(fake(|fake| fake.flags), 2, "CU_EVENT_DISABLE_TIMING");
    for error in [plain.elapsed_since(&start), start.elapsed_since(&plain)] {
        assert!(error.is_err_and(|error| error.to_string().contains("with_timing")));
    }
    fake(|fake| fake.failing = vec![("cuEventElapsedTime", NOT_READY)]);
    let error = end.elapsed_since(&start).expect_err("not complete");
    assert_eq!(error.code(), Some(CudaCode::NOT_READY));
}

#[test]
fn an_event_goes_to_another_process_by_its_handle() {
    let context = new_context();
    let event = CudaEvent::interprocess(&context).expect("nothing fails");
    assert_eq!(fake(|fake| fake.flags), 6, "CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING");
    let handle = event.export().expect("nothing fails");
    assert_ne!(handle, [0; 64]);
    let imported = CudaEvent::import(&context, handle).expect("nothing fails");
    // Only the maker exports.
    for other in [&imported, &CudaEvent::new(&context).expect("nothing fails")] {
        let error = other.export().expect_err("refused");
        assert!(
            matches!(&error, CudaError::Invalid { what, .. } if what.contains("interprocess")),
            "{error}"
        );
    }
    assert!(CudaEvent::import(&context, [0; 64]).is_err());
    drop((event, imported, context));
    assert_nothing_remains();
}
