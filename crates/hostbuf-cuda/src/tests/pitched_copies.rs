//! Copies of rows by one call.

#![allow(unsafe_code, reason = "copies are unsafe")]

use super::fake_driver::{OUT_OF_MEMORY, assert_nothing_remains, fake, new_context, take_calls};
use crate::{CudaCode, CudaError, CudaStream, DeviceSpan, PitchedCopy};

/// Makes a copy of 10 rows of 6 bytes, which fill both ranges.
fn rows() -> PitchedCopy {
    let from = std::ptr::slice_from_raw_parts(std::ptr::without_provenance(0x100), 9 * 16 + 6);
    PitchedCopy { from, from_pitch: 16, to: DeviceSpan::new(0x9000, 60), to_pitch: 6, width: 6, height: 10 }
}

/// Starts a copy, and returns the calls.
fn started(copy: &PitchedCopy) -> (Result<(), CudaError>, Vec<&'static str>) {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    take_calls();
    // SAFETY: the fake driver copies nothing.
    let result = unsafe { stream.copy_rows_to_device(copy) };
    let calls = take_calls();
    let handle = stream.handle().0 as u64;
    if !calls.is_empty() {
        assert_eq!(fake(|fake| fake.operands.pop()), Some(handle));
    }
    drop((stream, context));
    assert_nothing_remains();
    (result, calls)
}

#[test]
fn rows_are_copied_by_one_call() {
    let (result, calls) = started(&rows());
    assert_eq!((result, calls), (Ok(()), vec!["cuMemcpy2DAsync_v2"]));
    assert_eq!(fake(|fake| fake.operands.clone()), [0x9000, 0x100, 16, 6, 6, 10]);
}

#[test]
fn no_bytes_are_copied_by_no_call() {
    for empty in [PitchedCopy { height: 0, ..rows() }, PitchedCopy { width: 0, ..rows() }] {
        assert_eq!(started(&empty), (Ok(()), vec![]), "{empty:?}");
    }
}

#[test]
fn rows_outside_of_their_memory_are_refused() {
    let most = PitchedCopy::LARGEST_PITCH;
    let part = |copy: PitchedCopy, bytes| std::ptr::slice_from_raw_parts(copy.from.cast(), bytes);
    let cases = [
        (PitchedCopy { from_pitch: 5, ..rows() }, "invalid pitch 5 of rows in host memory"),
        (PitchedCopy { to_pitch: 5, ..rows() }, "invalid pitch 5 of rows in memory of the GPU"),
        (PitchedCopy { from: part(rows(), 149), ..rows() }, "do not fit into 149 bytes of host memory"),
        (
            PitchedCopy { to: DeviceSpan::new(0x9000, 59), ..rows() },
            "do not fit into 59 bytes of memory of the GPU",
        ),
        (PitchedCopy { height: 11, ..rows() }, "11 rows of 6 bytes with pitch 16 do not fit"),
        (PitchedCopy { height: usize::MAX, ..rows() }, "do not fit into 150 bytes of host memory"),
        (PitchedCopy { from_pitch: most + 1, ..rows() }, "the largest is 2147483647 bytes"),
        (PitchedCopy { width: usize::MAX, ..rows() }, "expected at least their width"),
        (PitchedCopy { to: DeviceSpan::new(u64::MAX - 58, 60), ..rows() }, "end beyond the last address"),
    ];
    for (copy, expected) in cases {
        let (result, calls) = started(&copy);
        let error = result.expect_err(expected);
        assert!(matches!(error, CudaError::Invalid { .. }) && calls.is_empty(), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn the_error_of_the_driver_states_the_rows() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    fake(|fake| fake.failing_call = Some(0));
    // SAFETY: the fake driver copies nothing.
    let error = unsafe { stream.copy_rows_to_device(&rows()) }.expect_err("the call fails");
    assert!(error.code() == CudaCode::of(OUT_OF_MEMORY), "{error}");
    let text = error.without_host();
    assert!(text.starts_with("cuMemcpy2DAsync of 10 rows of 6 "), "{text}");
    drop((stream, context));
    assert_nothing_remains();
}
