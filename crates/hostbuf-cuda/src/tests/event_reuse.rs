//! Events that are used again.

use super::fake_driver::{assert_nothing_remains, fake, new_context, take_calls};
use crate::{CudaEvent, CudaStream};

#[test]
fn an_event_after_a_stream_is_used_again_until_the_context_ends() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    let (first, second) = (CudaEvent::after(&stream), CudaEvent::after(&stream));
    drop((first.expect("nothing fails"), second.expect("nothing fails")));
    take_calls();
    for _ in 0..3 {
        let events = [(); 2].map(|()| CudaEvent::after(&stream).expect("nothing fails"));
        stream.wait(&events[0]).expect("nothing fails");
    }
    let calls = take_calls();
    assert!(!calls.contains(&"cuEventCreate") && !calls.contains(&"cuEventDestroy_v2"), "{calls:?}");
    drop(CudaEvent::new(&context).expect("nothing fails"));
    assert_eq!(take_calls(), ["cuEventCreate", "cuEventDestroy_v2"], "others are not kept");
    drop((stream, context));
    let destroyed = take_calls().iter().filter(|call| **call == "cuEventDestroy_v2").count();
    assert_eq!(destroyed, 2);
    assert_nothing_remains();
}

#[test]
fn a_context_keeps_a_bounded_number_of_events() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    let events: Vec<_> = (0..300).map(|_| CudaEvent::after(&stream).expect("nothing fails")).collect();
    take_calls();
    drop(events);
    assert_eq!(take_calls().len(), 300 - 256);
    drop((stream, context));
    assert_nothing_remains();
}

#[test]
fn events_that_end_with_a_lost_context_are_not_destroyed_again() {
    let context = new_context();
    let stream = CudaStream::new(&context).expect("nothing fails");
    drop(CudaEvent::after(&stream).expect("nothing fails"));
    fake(|fake| fake.lose_context(4));
    let messages = super::logged_errors::messages_of(|| drop((stream, context)));
    assert!(messages.is_empty(), "{messages:?}");
}
