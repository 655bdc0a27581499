//! A forked child with objects of its parent.

#![allow(unsafe_code, reason = "the test forks")]

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::deferred_copies::new_stream;
use super::fake_driver::{assert_nothing_remains, fake, new_context, take_calls};
use super::logged_errors::messages_of;
use crate::{BatchedCopy, CudaError, CudaStream, DeferredCopies, DeviceMemory};

#[test]
fn a_child_uses_and_ends_nothing_of_its_parent() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    let current = context.make_current().expect("nothing fails");
    take_calls();
    // SAFETY: the child only computes and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let refused = matches!(stream.synchronize(), Err(CudaError::Forked { .. }))
                && matches!(DeviceMemory::new(&context, 8), Err(CudaError::Forked { .. }));
            let well = refused && context.is_inherited();
            // Nothing is logged, since nothing has failed.
            let silent = messages_of(|| {
                drop(current);
                drop(stream);
            });
            drop(context);
            let untouched =
                fake(|fake| fake.calls.is_empty() && fake.live.len() == 2 && fake.current.len() == 1);
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!(well && silent.is_empty() && untouched))) }
        }
        ForkResult::Parent { child } => {
            assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
            assert!(!context.is_inherited());
            drop(current);
            drop((stream, context));
            assert_nothing_remains();
        }
    }
}

#[test]
fn a_child_gets_errors_for_the_deferred_copies_of_its_parent() {
    let stream = new_stream();
    let copies = DeferredCopies::new(stream.context(), 2).expect("nothing fails");
    assert_eq!(copies.has_ended(0), Ok(false));
    // SAFETY: the child only computes and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            // It does not have the memory of the requests.
            // SAFETY: nothing is copied.
            let number = unsafe { copies.start(BatchedCopy { to: 0, from: 0, bytes: 0 }) };
            let refused = matches!(copies.has_ended(number), Err(CudaError::Forked { .. }))
                && matches!(stream.enqueue_copies(&copies), Err(CudaError::Forked { .. }));
            copies.end();
            drop(copies);
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).expect("it is a child");
            assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
        }
    }
}
