//! Drivers that lack functions.

use super::fake_driver::{GRANULARITY, assert_nothing_remains, new_driver, take_calls};
use crate::{
    CudaContext, CudaError, CudaEvent, CudaStream, DeviceMemory, GpuUuid, IpcMemory, PageLockedMemory,
    PhysicalMemory, VirtualRange,
};

type Wanting = fn(&CudaContext) -> Result<(), CudaError>;

/// The functions of each group, and what wants them.
const GROUPS: &[(&[&str], Wanting)] = &[
    (&["cuStreamCreate", "cuStreamDestroy_v2", "cuMemcpyHtoDAsync_v2", "cuStreamWaitEvent"], |context| {
        CudaStream::new(context).map(drop)
    }),
    (&["cuEventCreate", "cuEventDestroy_v2", "cuEventQuery"], |context| CudaEvent::new(context).map(drop)),
    (&["cuStreamIsCapturing", "cuStreamAddCallback"], |context| {
        CudaStream::new(context)?.is_capturing().map(drop)
    }),
    (&["cuMemAlloc_v2", "cuMemFree_v2"], |context| DeviceMemory::new(context, 8).map(drop)),
    (&["cuMemHostAlloc", "cuMemFreeHost"], |context| PageLockedMemory::new(context, 8).map(drop)),
    (&["cuMemCreate", "cuMemRelease", "cuMemExportToShareableHandle", "cuMemUnmap"], |context| {
        PhysicalMemory::create(context, 8).map(drop)
    }),
    (&["cuMemAddressReserve", "cuMemAddressFree", "cuMemSetAccess"], |context| {
        VirtualRange::reserve(context, GRANULARITY, None).map(drop)
    }),
    (&["cuIpcOpenEventHandle"], |context| CudaEvent::import(context, [1; 64]).map(drop)),
    (&["cuIpcGetEventHandle"], |context| CudaEvent::interprocess(context)?.export().map(drop)),
    (&["cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"], |context| {
        IpcMemory::open(context, [1; 64]).map(drop)
    }),
];

#[test]
fn a_missing_function_is_named_when_it_is_wanted_and_not_before() {
    for (functions, want) in GROUPS {
        for &function in *functions {
            let driver = new_driver(|fake| fake.missing = vec![function]).expect("it is not needed yet");
            let context = CudaContext::retain(&driver.gpu(0).expect("there are two")).expect("nothing fails");
            take_calls();
            let error = want(&context).expect_err("it is missing");
            assert!(
                matches!(error, CudaError::MissingFunction { function: named, .. } if named == function),
                "{function}: {error}"
            );
            let text = error.without_host();
            assert_eq!(text, format!("the driver has no {function}: install a newer one"));
            // Nothing was made that the driver could not end.
            assert!(!take_calls().contains(&function));
            drop(context);
            assert_nothing_remains();
        }
    }
}

#[test]
fn an_older_function_replaces_a_missing_one() {
    const FUNCTIONS: [&str; 2] = ["cuDeviceGetUuid_v2", "cuDeviceGetUuid"];
    let uuid = |missing: &[&'static str]| {
        new_driver(|fake| fake.missing = missing.to_vec()).and_then(|driver| driver.gpu(0)?.uuid())
    };
    assert_eq!((uuid(&FUNCTIONS[1..]), uuid(&FUNCTIONS[..1])), (Ok(GpuUuid([7; 16])), Ok(GpuUuid([5; 16]))));
    let error = uuid(&FUNCTIONS).expect_err("both are missing");
    assert!(
        matches!(error, CudaError::MissingFunction { function, .. } if function == FUNCTIONS[0]),
        "{error}"
    );
}

#[test]
fn each_group_works_alone() {
    for (functions, _) in GROUPS {
        let others = GROUPS.iter().filter(|(group, _)| group != functions);
        let driver = new_driver(|fake| fake.missing = vec![functions[0]]).expect("it is not needed yet");
        let context = CudaContext::retain(&driver.gpu(0).expect("there are two")).expect("nothing fails");
        let worked = others.filter(|(_, want)| want(&context).is_ok()).count();
        // A group has at most two entries of the table.
        assert!(worked + 2 >= GROUPS.len() - 1, "{functions:?}: {worked}");
        drop(context);
        assert_nothing_remains();
    }
}

#[test]
fn a_driver_that_cannot_register_host_memory_is_refused_when_it_is_loaded() {
    for function in ["cuInit", "cuMemHostRegister_v2", "cuCtxPushCurrent_v2"] {
        let error = new_driver(|fake| fake.missing = vec![function]).expect_err("too old");
        assert!(matches!(error, CudaError::MissingFunction { function: named, .. } if named == function));
    }
}
