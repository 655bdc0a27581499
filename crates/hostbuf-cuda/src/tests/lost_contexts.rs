//! Contexts that end before what was made in them.

use super::fake_driver::{
    CONTEXT_IS_DESTROYED, DEINITIALIZED, GRANULARITY, assert_nothing_remains, fake, new_context, take_calls,
};
use super::logged_errors::messages_of;
use crate::{CudaEvent, CudaStream, DeviceMemory, GpuAccess, PageLockedMemory, PhysicalMemory, VirtualRange};

#[test]
fn objects_of_a_context_that_is_gone_end_silently_and_without_calls() {
    for code in [DEINITIALIZED, CONTEXT_IS_DESTROYED] {
        let context = new_context();
        let (stream, event) = (CudaStream::new(&context), CudaEvent::new(&context));
        let (stream, event) = (stream.expect("nothing fails"), event.expect("nothing fails"));
        let device = DeviceMemory::new(&context, 64).expect("nothing fails");
        let host = PageLockedMemory::new(&context, 64).expect("nothing fails");
        let memory = PhysicalMemory::create(&context, 1).expect("nothing fails");
        let range = VirtualRange::reserve(&context, GRANULARITY, None).expect("nothing fails");
        let mapped = range.map(memory, &[GpuAccess::read_write(context.gpu())]).expect("nothing fails");
        fake(|fake| fake.lose_context(code));
        for error in [stream.synchronize(), event.synchronize()] {
            let error = error.expect_err("the context is gone");
            assert!(
                error.is_context_gone() && error.without_host().starts_with("cuCtxPushCurrent"),
                "{error}"
            );
        }
        take_calls();
        let messages = messages_of(|| drop((stream, event, device, host, mapped, context)));
        assert_eq!(messages, Vec::<String>::new());
        assert_eq!(take_calls(), ["cuDevicePrimaryCtxRelease_v2"]);
        assert_nothing_remains();
    }
}

#[test]
fn the_advice_tells_a_reset_from_the_end_of_the_process() {
    for (code, advice) in
        [(DEINITIALIZED, "the process is exiting"), (CONTEXT_IS_DESTROYED, "cudaDeviceReset")]
    {
        let context = new_context();
        fake(|fake| fake.lose_context(code));
        let error = context.make_current().expect_err("the context is gone").to_string();
        assert!(error.contains(advice), "{error}");
    }
}
