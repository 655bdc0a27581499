//! The streams of threads.

#![allow(unsafe_code, reason = "a test forks")]

use std::thread;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::fake_driver::{
    CONTEXT_IS_DESTROYED, OUT_OF_MEMORY, assert_nothing_remains, fake, new_context, new_driver, take_calls,
};
use crate::{CudaContext, CudaError, CudaStream, StreamHandle};

/// Makes a context that ends its streams.
fn context() -> CudaContext {
    let context = new_context();
    fake(|fake| fake.ends_streams = true);
    take_calls();
    context
}

/// Returns the handle of this thread's stream.
fn handle(context: &CudaContext) -> StreamHandle {
    CudaStream::of_thread(context).expect("nothing fails").handle()
}

/// Returns the number of streams that this thread has made since the calls were taken last.
fn made() -> usize {
    let calls = take_calls();
    assert!(!calls.contains(&"cuStreamDestroy_v2"), "{calls:?}");
    calls.iter().filter(|call| **call == "cuStreamCreate").count()
}

/// Returns the handle of the stream of a new thread, which ends, and the number of streams that it
/// has made.
fn in_new_thread(context: &CudaContext) -> (StreamHandle, usize) {
    let context = context.clone();
    let run = move || {
        let handle = handle(&context);
        // The main thread releases the context.
        (handle, made())
    };
    thread::spawn(run).join().expect("no panic")
}

#[test]
fn a_thread_makes_one_stream_for_each_context() {
    let context = context();
    let first = handle(&context);
    assert_eq!(fake(|fake| fake.flags), 1, "CU_STREAM_NON_BLOCKING");
    assert!((0..1000).all(|_| handle(&context) == first));
    assert_eq!(made(), 1);
    // Another part of the program has the same context.
    let same = CudaContext::retain(context.gpu()).expect("nothing fails");
    assert_eq!((handle(&same), made()), (first, 0));
    let other = context.driver().gpu(1).and_then(|gpu| CudaContext::retain(&gpu)).expect("nothing fails");
    assert!(handle(&other) != first && handle(&context) == first);
    assert_eq!(made(), 1);
    drop((context, same, other));
    assert_nothing_remains();
}

#[test]
fn a_thread_leaves_its_stream_to_the_next_thread() {
    let context = context();
    let (first, made_first) = in_new_thread(&context);
    assert_eq!((made_first, in_new_thread(&context)), (1, (first, 0)));
    // Two threads at a time have two streams.
    assert_eq!((handle(&context), made()), (first, 0));
    assert_eq!(in_new_thread(&context).1, 1);
    assert_eq!((handle(&context), made()), (first, 0));
}

#[test]
fn a_context_that_was_made_again_gets_a_new_stream() {
    let context = context();
    let of_another_thread = in_new_thread(&context).0;
    assert_eq!(handle(&context), of_another_thread);
    in_new_thread(&context);
    take_calls();
    // Somebody has reset the GPU, and the context has the same address.
    fake(|fake| {
        fake.context_number += 1;
        fake.live.retain(|one| !one.starts_with("stream"));
    });
    let new = handle(&context);
    assert_eq!(made(), 1);
    assert_eq!((handle(&context), made()), (new, 0));
    drop(context);
    assert_nothing_remains();
}

#[test]
fn a_context_that_is_gone_and_a_failed_call_are_errors() {
    let context = context();
    for function in ["cuCtxGetId", "cuStreamCreate"] {
        fake(|fake| fake.failing = vec![(function, OUT_OF_MEMORY)]);
        let error = CudaStream::of_thread(&context).expect_err("it fails");
        assert!(error.without_host().starts_with(function), "{error}");
    }
    fake(|fake| fake.failing.clear());
    take_calls();
    handle(&context);
    assert_eq!(made(), 1);
    fake(|fake| fake.lose_context(CONTEXT_IS_DESTROYED));
    let error = CudaStream::of_thread(&context).expect_err("the context is gone");
    assert!(error.is_context_gone(), "{error}");
    drop(context);
    assert_nothing_remains();
}

#[test]
fn a_driver_without_numbers_of_contexts_makes_a_stream_for_each_call() {
    let driver = new_driver(|fake| fake.missing = vec!["cuCtxGetId"]).expect("it is not needed");
    let context = CudaContext::retain(&driver.gpu(0).expect("there are two")).expect("nothing fails");
    take_calls();
    for _ in 0..2 {
        drop(CudaStream::of_thread(&context).expect("nothing fails"));
    }
    assert_eq!(take_calls(), ["cuStreamCreate", "cuStreamDestroy_v2"].repeat(2));
    drop(context);
    assert_nothing_remains();
}

#[test]
fn a_child_gets_no_stream_of_its_parent() {
    let context = context();
    let of_parent = [handle(&context), in_new_thread(&context).0];
    take_calls();
    // SAFETY: the child only computes and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let refused = matches!(CudaStream::of_thread(&context), Err(CudaError::Forked { .. }));
            let own = CudaContext::retain(context.gpu()).expect("nothing fails");
            let well = refused && !of_parent.contains(&handle(&own)) && made() == 1;
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => {
            assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
            assert_eq!((handle(&context), made()), (of_parent[0], 0));
        }
    }
}
