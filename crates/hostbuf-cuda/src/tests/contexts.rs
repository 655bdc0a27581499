//! Finding GPUs, and contexts.

use hostbuf_os::process::host_name;

use super::fake_driver::{
    GRANULARITY, ILLEGAL_ADDRESS, OUT_OF_MEMORY, assert_nothing_remains, fake, new_context, new_driver,
    take_calls,
};
use crate::{
    CudaError, CudaEvent, CudaStream, DeviceMemory, Driver, GpuFeature, GpuUuid, PhysicalMemory, VirtualRange,
};

#[test]
fn gpus_are_found_by_number_and_by_uuid() {
    let driver = new_driver(|_| {}).expect("nothing fails");
    assert_eq!((driver.version(), driver.gpu_count()), (Ok((12, 8)), Ok(2)));
    let gpus = driver.gpus().expect("nothing fails");
    assert_eq!(gpus.iter().map(crate::CudaGpu::ordinal).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((gpus[1].name(), gpus[1].uuid()), (Ok("Fake GPU".into()), Ok(GpuUuid([9; 16]))));
    assert_eq!(driver.gpu_with_uuid(&GpuUuid([9; 16])), Ok(gpus[1]));
    // None of this needs a context.
    assert_nothing_remains();
}

#[test]
fn a_gpu_that_the_process_does_not_see_is_an_error_with_the_remedy() {
    let driver = new_driver(|_| {}).expect("nothing fails");
    for error in [driver.gpu(2), driver.gpu(u32::MAX), driver.gpu_with_uuid(&GpuUuid([8; 16]))] {
        let text = error.expect_err("there are two").to_string();
        for part in ["2 are visible", "CUDA_VISIBLE_DEVICES", "nvidia-smi", &host_name()] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    }
    let text = driver.gpu_with_uuid(&GpuUuid([8; 16])).expect_err("unknown").to_string();
    assert!(text.contains("GPU-08080808-0808-0808-0808-080808080808"), "{text}");
    let none = new_driver(|fake| fake.uuids.clear()).expect_err("no GPU");
    assert_eq!(none.without_host(), "there is no GPU, or CUDA_VISIBLE_DEVICES hides it");
    assert!(none.to_string().contains(&host_name()), "{none}");
}

#[test]
fn features_are_asked_for_without_a_failing_call() {
    let known = vec![(113, 1), (102, 0)];
    let driver = new_driver(|fake| fake.attributes = known).expect("nothing fails");
    let gpu = driver.gpu(0).expect("there are two");
    assert_eq!(gpu.reports(GpuFeature::ReadOnlyRegistration), Some(true));
    assert_eq!(gpu.reports(GpuFeature::VirtualMemory), Some(false));
    // A driver that does not know it.
    assert_eq!(gpu.reports(GpuFeature::IpcEvents), None);
    let features = [
        GpuFeature::ReadOnlyRegistration,
        GpuFeature::VirtualMemory,
        GpuFeature::DescriptorExport,
        GpuFeature::IpcEvents,
        GpuFeature::HostAddresses,
    ];
    assert_eq!(features.map(|feature| gpu.supports(feature)), [true, false, false, false, false]);
}

#[test]
fn the_last_user_releases_the_context() {
    let context = new_context();
    let same = context.clone();
    assert_eq!(context, same);
    let stream = CudaStream::new(&context).expect("nothing fails");
    drop((context, same));
    assert!(!take_calls().contains(&"cuDevicePrimaryCtxRelease_v2"));
    drop(stream);
    assert_eq!(take_calls(), ["cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2"]);
    assert_nothing_remains();
}

#[test]
fn a_current_context_is_restored() {
    let context = new_context();
    let outer = context.make_current().expect("nothing fails");
    let inner = outer.context().make_current().expect("nothing fails");
    assert_eq!(fake(|fake| fake.current.len()), 2);
    drop(inner);
    DeviceMemory::new(&context, 16).expect("nothing fails");
    assert_eq!(fake(|fake| fake.current.len()), 1);
    drop(outer);
    drop(context);
    assert_nothing_remains();
}

#[test]
fn an_error_states_the_call_the_code_the_host_and_the_remedy() {
    let context = new_context();
    fake(|fake| fake.failing = vec![("cuEventCreate", OUT_OF_MEMORY)]);
    let error = CudaEvent::new(&context).expect_err("it fails");
    let expected = format!(
        "cuEventCreate returned CUDA_ERROR_OUT_OF_MEMORY (2) on {}: the GPU or the host has too little free memory: \
         free some (nvidia-smi lists the processes), or request less",
        host_name()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.without_host(), expected.replace(&format!(" on {}", host_name()), ""));
    assert!(matches!(&error, CudaError::Call { code, .. } if code.number() == OUT_OF_MEMORY));
    // A code of a newer driver has no name here.
    fake(|fake| fake.failing = vec![("cuEventCreate", 4_000_000)]);
    let error = CudaEvent::new(&context).expect_err("it fails");
    assert!(error.without_host().contains("an error without a name (4000000)"), "{error}");
    fake(|fake| fake.failing = vec![("cuEventCreate", ILLEGAL_ADDRESS)]);
    let error = CudaEvent::new(&context).expect_err("it fails");
    assert!(error.code().is_some_and(crate::CudaCode::is_context_broken));
    assert!(error.to_string().contains("start the process again"), "{error}");
}

#[test]
fn too_little_memory_of_a_gpu_is_an_error_with_the_request_and_the_free_memory() {
    let context = new_context();
    let device = DeviceMemory::new(&context, 2 << 30).expect_err("too much").to_string();
    let physical = PhysicalMemory::create(&context, 2 << 30).expect_err("too much").to_string();
    for (error, function) in [(device, "cuMemAlloc"), (physical, "cuMemCreate")] {
        let start = format!("{function} of 2 GiB on GPU 0 (3 MiB of 1 GiB are free) returned");
        assert!(error.starts_with(&start), "{error}");
    }
    drop(context);
    assert_nothing_remains();
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let context = new_context();
    for bytes in [0, usize::MAX] {
        let error = PhysicalMemory::create(&context, bytes).expect_err("refused");
        assert!(matches!(error, CudaError::Invalid { .. }), "{error}");
        assert!(VirtualRange::reserve(&context, bytes, None).is_err());
    }
    assert_eq!(PhysicalMemory::create(&context, 1).expect("rounded up").bytes(), GRANULARITY);
}

#[test]
fn a_missing_driver_is_an_error_with_the_remedy() {
    match Driver::find() {
        Ok(driver) => assert!(driver.gpu_count().is_ok_and(|count| count > 0)),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("libcuda") || text.contains("GPU") || text.contains("cuInit"), "{text}");
            assert!(text.contains(&host_name()), "{text}");
        }
    }
}
