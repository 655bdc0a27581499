//! Memory of a GPU that processes share.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use super::fake_driver::{
    GRANULARITY, INVALID_CONTEXT, INVALID_VALUE, assert_nothing_remains, fake, new_context, new_driver,
    take_calls,
};
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
fn memory_of_two_gpus_is_mapped_to_one_range_without_a_context() {
    let driver = new_driver(|_| {}).expect("it has all functions");
    let gpus = driver.gpus().expect("it has two");
    let range = VirtualRange::reserve(&gpus[0], 3 * GRANULARITY, Some(0x7100_0000_0000)).expect("it is free");
    let create = |gpu: usize, pieces: usize| PhysicalMemory::create(&gpus[gpu], pieces * GRANULARITY);
    let memory = vec![create(0, 1).expect("nothing fails"), create(1, 2).expect("nothing fails")];
    assert_eq!((*memory[1].gpu(), memory[1].gpu().pci_address()), (gpus[1], Ok("0000:1b:00.0".into())));
    let access: Vec<_> = gpus.iter().map(GpuAccess::read_write).collect();
    let mapped = range.map_all(memory, &access).expect("nothing fails");
    assert_eq!(fake(|fake| fake.operands.clone()), [0, 3, 1, 3]);
    assert_eq!((mapped.bytes(), mapped.memories().len()), (3 * GRANULARITY, 2));
    mapped.set_access(&[GpuAccess::read_only(&gpus[1])]).expect("it is mapped");
    assert_eq!(fake(|fake| fake.operands.clone()), [1, 1]);
    take_calls();
    drop(mapped);
    let expected = ["cuMemUnmap", "cuMemUnmap", "cuMemRelease", "cuMemRelease", "cuMemAddressFree"];
    assert_eq!(take_calls(), expected);
    assert_nothing_remains();
}

#[test]
fn a_second_memory_that_is_not_mapped_undoes_the_first() {
    let driver = new_driver(|_| {}).expect("it has all functions");
    let gpu = driver.gpu(0).expect("it has two");
    for function in ["cuMemMap", "cuMemSetAccess"] {
        let range = VirtualRange::reserve(&gpu, 2 * GRANULARITY, None).expect("nothing fails");
        let create = || PhysicalMemory::create(&gpu, GRANULARITY).expect("nothing fails");
        let memory = vec![create(), create()];
        // The calls that do not end anything: two of cuMemMap, one of cuMemSetAccess.
        fake(|fake| fake.failing_call = Some(if function == "cuMemMap" { 1 } else { 2 }));
        let error = range.map_all(memory, &[GpuAccess::read_write(&gpu)]).expect_err("it fails");
        assert!(error.to_string().starts_with(function), "{error}");
        assert_nothing_remains();
    }
}

#[test]
fn a_driver_that_wants_a_context_for_memory_gets_one_for_each_call() {
    let driver = new_driver(|fake| fake.wants_contexts = true).expect("it has all functions");
    let gpu = driver.gpu(0).expect("it has two");
    let memory = PhysicalMemory::create(&gpu, GRANULARITY).expect("it gets a context");
    let range = VirtualRange::reserve(&gpu, GRANULARITY, None).expect("it gets a context");
    drop(range.map(memory, &[GpuAccess::read_write(&gpu)]).expect("it gets a context"));
    assert_nothing_remains();
    fake(|fake| fake.failing = vec![("cuDevicePrimaryCtxRetain", INVALID_CONTEXT)]);
    let error = PhysicalMemory::create(&gpu, GRANULARITY).expect_err("there is none").to_string();
    assert!(error.starts_with("cuDevicePrimaryCtxRetain of GPU 0"), "{error}");
}

#[test]
fn a_lack_of_memory_states_the_free_memory_without_a_context_too() {
    let driver = new_driver(|_| {}).expect("it has all functions");
    let gpu = driver.gpu(0).expect("it has two");
    let error = PhysicalMemory::create(&gpu, 2 << 30).expect_err("it is too much").to_string();
    assert!(error.contains("2 GiB on GPU 0 (3 MiB of 1 GiB are free)"), "{error}");
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
