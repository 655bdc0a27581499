//! The functions of a driver that have something in common.

/// The functions that work without a current context.
pub(super) const WITHOUT_CONTEXT: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuGetErrorName",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
];
/// The functions that end something, and those that come before them. The others can be made to
/// fail by their number.
pub(super) const ENDING: &[&str] = &[
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuGetErrorName",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuIpcCloseMemHandle",
];
