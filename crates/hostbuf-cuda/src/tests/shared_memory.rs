//! Memory of a GPU that processes share.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use super::fake_driver::{GRANULARITY, INVALID_VALUE, assert_nothing_remains, fake, new_context, take_calls};
use crate::{CudaError, GpuAccess, IpcMemory, PhysicalMemory, VirtualRange};

#[test]
fn memory_is_unmapped_then_released_and_then_its_range_freed() {
    let context = new_context();
    let memory = PhysicalMemory::create(&context, GRANULARITY + 1).expect("nothing fails");
    assert_eq!(memory.bytes(), 2 * GRANULARITY);
    let range = VirtualRange::reserve(&context, memory.bytes(), None).expect("nothing fails");
    let (address, bytes) = (range.address(), range.bytes());
    let other = context.driver().gpu(1).expect("there are two");
    let access = [GpuAccess::read_write(context.gpu()), GpuAccess::read_only(&other)];
    let mapped = range.map(memory, &access).expect("nothing fails");
    // The location and the right of each: read and write is 3, read is 1.
    assert_eq!(fake(|fake| fake.operands.clone()), [0, 3, 1, 1]);
    assert_eq!((mapped.address(), mapped.bytes()), (address, bytes));
    assert_eq!((mapped.span().address(), mapped.memory().bytes()), (address, bytes));
    mapped.memory().export().expect("mapped memory can be exported");
    take_calls();
    drop(context);
    drop(mapped);
    let expected = ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuDevicePrimaryCtxRelease_v2"];
    assert_eq!(take_calls(), expected);
    assert_nothing_remains();
}

#[test]
fn a_mapping_without_access_is_undone_in_order() {
    let context = new_context();
    let memory = PhysicalMemory::create(&context, GRANULARITY).expect("nothing fails");
    let range = VirtualRange::reserve(&context, GRANULARITY, None).expect("nothing fails");
    fake(|fake| fake.failing = vec![("cuMemSetAccess", INVALID_VALUE)]);
    take_calls();
    let error = range.map(memory, &[GpuAccess::read_only(context.gpu())]).expect_err("it fails");
    assert!(error.without_host().starts_with("cuMemSetAccess at 0x7"), "{error}");
    let expected = ["cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"];
    assert_eq!(take_calls(), expected);
    drop(context);
    assert_nothing_remains();
}

#[test]
fn a_range_of_another_size_is_refused_before_the_driver_is_called() {
    let context = new_context();
    let memory = PhysicalMemory::create(&context, GRANULARITY).expect("nothing fails");
    let range = VirtualRange::reserve(&context, 2 * GRANULARITY, None).expect("nothing fails");
    let error = range.map(memory, &[]).expect_err("the sizes differ");
    assert!(error.without_host().contains("memory of 2 MiB to a range of 4 MiB"), "{error}");
    assert!(!take_calls().contains(&"cuMemMap"));
    drop(context);
    assert_nothing_remains();
}

#[test]
fn an_address_that_the_driver_does_not_grant_is_given_up() {
    let context = new_context();
    let at = 0x7100_0000_0000;
    let granted = VirtualRange::reserve(&context, GRANULARITY, Some(at)).expect("it is free");
    assert_eq!(granted.address(), at);
    let error = VirtualRange::reserve(&context, GRANULARITY, Some(0x1000)).expect_err("it is taken");
    let text = error.without_host();
    assert!(text.contains("2 MiB at 0x1000") && text.contains("offers 0x700000000000"), "{text}");
    drop((granted, context));
    assert_nothing_remains();
}

#[test]
fn an_address_is_granted_behind_the_holes_of_the_driver() {
    let context = new_context();
    fake(|fake| fake.holes = 16);
    let at = 0x7100_0000_0000;
    let granted = VirtualRange::reserve(&context, GRANULARITY, Some(at)).expect("it is free");
    assert_eq!(granted.address(), at);
    // No other range is left.
    let ranges = fake(|fake| fake.live.iter().filter(|object| object.starts_with("range")).count());
    assert_eq!(ranges, 1);
    drop((granted, context));
    assert_nothing_remains();
}

#[test]
fn a_descriptor_is_closed_on_exec_and_imports_the_memory() {
    let context = new_context();
    let memory = PhysicalMemory::create(&context, 1).expect("nothing fails");
    let descriptor = memory.export().expect("nothing fails");
    let flags = nix::fcntl::fcntl(&descriptor, nix::fcntl::FcntlArg::F_GETFD).expect("it is open");
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    let imported =
        PhysicalMemory::import(&context, descriptor.as_fd(), memory.bytes()).expect("nothing fails");
    assert_eq!(fake(|fake| fake.operands.clone()), [descriptor.as_raw_fd() as u64]);
    assert_eq!(imported.bytes(), memory.bytes());
    drop((memory, imported, context));
    assert_nothing_remains();
}

#[test]
fn memory_of_another_gpu_and_impossible_sizes_are_not_imported() {
    let context = new_context();
    let descriptor = File::open("/dev/null").expect("it is there");
    let import = |bytes| PhysicalMemory::import(&context, descriptor.as_fd(), bytes).expect_err("refused");
    for bytes in [0, 1, GRANULARITY + 1, usize::MAX] {
        let error = import(bytes);
        assert!(matches!(error, CudaError::Invalid { .. }), "{error}");
    }
    assert!(!take_calls().contains(&"cuMemImportFromShareableHandle"));
    fake(|fake| fake.imported_device = 1);
    let error = import(GRANULARITY);
    assert!(error.without_host().contains("on GPU 0: it lies on GPU 1"), "{error}");
    drop(context);
    assert_nothing_remains();
}

#[test]
fn a_legacy_handle_is_opened_and_closed() {
    let context = new_context();
    let memory = IpcMemory::open(&context, [1; 64]).expect("nothing fails");
    assert_eq!((memory.bytes(), fake(|fake| fake.flags)), (4096, 1), "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS");
    assert_eq!(memory.span().address(), memory.address());
    let error = IpcMemory::open(&context, [0; 64]).expect_err("of another PID namespace").to_string();
    assert!(error.contains("PID namespace") && error.starts_with("cuIpcOpenMemHandle on GPU 0"), "{error}");
    drop((memory, context));
    assert_nothing_remains();
}
