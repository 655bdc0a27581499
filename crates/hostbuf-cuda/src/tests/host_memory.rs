//! Registered and page-locked host memory.

use super::fake_driver::{
    DEINITIALIZED, INVALID_VALUE, assert_nothing_remains, fake, new_context, take_calls,
};
use crate::{HostAccess, PageLockedMemory};

const START: usize = 0x5000;

#[test]
fn a_registration_passes_its_access_and_returns_the_gpus_address() {
    let context = new_context();
    let current = context.make_current().expect("nothing fails");
    // PORTABLE and DEVICEMAP, and READ_ONLY.
    for (access, flags) in [(HostAccess::ReadWrite, 3), (HostAccess::ReadOnly, 11)] {
        assert_eq!(current.register_host(START..START + 100, access), Ok(START as u64 + 1));
        assert_eq!(fake(|fake| fake.flags), flags);
        current.unregister_host(START).expect("registered");
    }
    drop(current);
    drop(context);
    assert_nothing_remains();
}

#[test]
fn a_registration_without_an_address_ends_at_once() {
    let context = new_context();
    fake(|fake| fake.failing = vec![("cuMemHostGetDevicePointer_v2", INVALID_VALUE)]);
    let current = context.make_current().expect("nothing fails");
    take_calls();
    let error = current.register_host(START..START + 1, HostAccess::ReadWrite).expect_err("it fails");
    assert!(error.without_host().starts_with("cuMemHostGetDevicePointer returned"), "{error}");
    let expected = ["cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuMemHostUnregister"];
    assert_eq!(take_calls(), expected);
    drop(current);
    assert!(PageLockedMemory::new(&context, 64).is_err());
    assert_eq!(take_calls(), ["cuMemHostAlloc", "cuMemHostGetDevicePointer_v2", "cuMemFreeHost"]);
    drop(context);
    assert_nothing_remains();
}

#[test]
fn a_registration_that_is_not_there_is_an_error_unless_the_context_is_gone() {
    let context = new_context();
    let current = context.make_current().expect("nothing fails");
    assert!(current.unregister_host(START).is_err());
    fake(|fake| fake.failing = vec![("cuMemHostUnregister", DEINITIALIZED)]);
    assert_eq!(current.unregister_host(START), Ok(()));
}

#[test]
fn page_locked_memory_has_an_address_for_the_gpus() {
    let context = new_context();
    let memory = PageLockedMemory::new(&context, 100).expect("nothing fails");
    assert_eq!((memory.bytes(), fake(|fake| fake.flags)), (100, 3));
    assert_eq!(memory.device_address(), memory.as_ptr() as u64 + 1);
    drop((memory, context));
    assert_nothing_remains();
}
