//! The driver's functions, in groups. The basic group is looked up when the driver is loaded, each
//! other group when one of its functions is wanted, so that an old driver serves those who do
//! without it.

#![allow(unsafe_code, reason = "a symbol of the driver is given the type of its function")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys;
use hostbuf_os::set_once::SetOnce;

use crate::cuda_error::CudaError;

/// A function that finds a symbol of the driver by its name.
pub(crate) type SymbolLookup = fn(&'static str) -> Option<*const c_void>;

/// Declares a group: for each function the field, the name of its symbol, in newer drivers first,
/// and its arguments. All return integers instead of the enum `CUresult`, since a newer driver may
/// return a code that the enum does not have.
macro_rules! function_group {
    (
        $(#[$doc:meta])*
        $group:ident { $($field:ident: $name:literal $(| $older:literal)? ($($argument:ty),*);)* }
    ) => {
        $(#[$doc])*
        pub(crate) struct $group {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_uint,)*
        }

        impl $group {
            fn find(lookup: SymbolLookup) -> Result<$group, CudaError> {
                Ok($group {
                    $($field: {
                        let found = lookup($name)$(.or_else(|| lookup($older)))?
                            .ok_or_else(|| CudaError::missing($name))?;
                        // SAFETY: the driver's function of this name has this type.
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($argument),*) -> c_uint,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

function_group! {
    /// The functions of every driver that is supported: GPUs, contexts, host registration.
    BasicFunctions {
        initialize: "cuInit" (c_uint);
        version: "cuDriverGetVersion" (*mut c_int);
        count: "cuDeviceGetCount" (*mut c_int);
        device: "cuDeviceGet" (*mut sys::CUdevice, c_int);
        attribute: "cuDeviceGetAttribute" (*mut c_int, c_uint, sys::CUdevice);
        device_name: "cuDeviceGetName" (*mut c_char, c_int, sys::CUdevice);
        retain: "cuDevicePrimaryCtxRetain" (*mut sys::CUcontext, sys::CUdevice);
        release: "cuDevicePrimaryCtxRelease_v2" (sys::CUdevice);
        push: "cuCtxPushCurrent_v2" (sys::CUcontext);
        pop: "cuCtxPopCurrent_v2" (*mut sys::CUcontext);
        register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        unregister: "cuMemHostUnregister" (*mut c_void);
        device_pointer: "cuMemHostGetDevicePointer_v2" (*mut sys::CUdeviceptr, *mut c_void, c_uint);
        error_name: "cuGetErrorName" (c_uint, *mut *const c_char);
    }
}

function_group! {
    /// The function that returns the UUID of a GPU, or of a part of one (MIG) in newer drivers.
    UuidFunctions {
        uuid: "cuDeviceGetUuid_v2" | "cuDeviceGetUuid" (*mut sys::CUuuid, sys::CUdevice);
    }
}

function_group! {
    /// The function that returns the address of a GPU on the PCI bus.
    PciFunctions {
        address: "cuDeviceGetPCIBusId" (*mut c_char, c_int, sys::CUdevice);
    }
}

function_group! {
    /// The function of CUDA 12 that returns the number of a context.
    ContextNumberFunctions {
        number: "cuCtxGetId" (sys::CUcontext, *mut c_ulonglong);
    }
}

function_group! {
    /// Streams, and copies on them.
    StreamFunctions {
        create: "cuStreamCreate" (*mut sys::CUstream, c_uint);
        destroy: "cuStreamDestroy_v2" (sys::CUstream);
        synchronize: "cuStreamSynchronize" (sys::CUstream);
        query: "cuStreamQuery" (sys::CUstream);
        wait_event: "cuStreamWaitEvent" (sys::CUstream, sys::CUevent, c_uint);
        copy_to_device: "cuMemcpyHtoDAsync_v2" (sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
        copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
        copy_on_device: "cuMemcpyDtoDAsync_v2" (sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
        copy_rows: "cuMemcpy2DAsync_v2" (*const sys::CUDA_MEMCPY2D, sys::CUstream);
    }
}

function_group! {
    /// The order between a stream and the threads of the process.
    StreamOrderFunctions {
        is_capturing: "cuStreamIsCapturing" (sys::CUstream, *mut c_uint);
        add_callback: "cuStreamAddCallback" (
            sys::CUstream, unsafe extern "C" fn(sys::CUstream, c_uint, *mut c_void), *mut c_void, c_uint
        );
    }
}

function_group! {
    /// The function that sets what a thread may do while a stream is captured.
    CaptureFunctions {
        exchange_mode: "cuThreadExchangeStreamCaptureMode" (*mut c_uint);
    }
}

function_group! {
    /// The functions of CUDA 11.7 by which a stream waits for a word of memory, and writes to one.
    StreamWaitFunctions {
        wait_value: "cuStreamWaitValue32_v2" (sys::CUstream, sys::CUdeviceptr, u32, c_uint);
        write_value: "cuStreamWriteValue32_v2" (sys::CUstream, sys::CUdeviceptr, u32, c_uint);
    }
}

function_group! {
    /// Kernels.
    KernelFunctions {
        load: "cuModuleLoadData" (*mut sys::CUmodule, *const c_void);
        find: "cuModuleGetFunction" (*mut sys::CUfunction, sys::CUmodule, *const c_char);
        launch: "cuLaunchKernel" (
            sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream,
            *mut *mut c_void, *mut *mut c_void
        );
    }
}

function_group! {
    /// The function of CUDA 13 that starts many copies.
    BatchFunctions {
        copy: "cuMemcpyBatchAsync_v2" (
            *const sys::CUdeviceptr, *const sys::CUdeviceptr, *const usize, usize,
            *mut sys::CUmemcpyAttributes, *mut usize, usize, sys::CUstream
        );
    }
}

function_group! {
    /// The function of CUDA 12.8 that starts many copies, and returns the index of a wrong one.
    BatchIndexFunctions {
        copy: "cuMemcpyBatchAsync" (
            *const sys::CUdeviceptr, *const sys::CUdeviceptr, *const usize, usize,
            *mut sys::CUmemcpyAttributes, *mut usize, usize, *mut usize, sys::CUstream
        );
    }
}

function_group! {
    /// Events.
    EventFunctions {
        create: "cuEventCreate" (*mut sys::CUevent, c_uint);
        destroy: "cuEventDestroy_v2" (sys::CUevent);
        record: "cuEventRecord" (sys::CUevent, sys::CUstream);
        query: "cuEventQuery" (sys::CUevent);
        synchronize: "cuEventSynchronize" (sys::CUevent);
        elapsed: "cuEventElapsedTime" (*mut f32, sys::CUevent, sys::CUevent);
    }
}

function_group! {
    /// Memory that the driver allocates.
    AllocationFunctions {
        allocate: "cuMemAlloc_v2" (*mut sys::CUdeviceptr, usize);
        free: "cuMemFree_v2" (sys::CUdeviceptr);
        info: "cuMemGetInfo_v2" (*mut usize, *mut usize);
        allocate_host: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        free_host: "cuMemFreeHost" (*mut c_void);
    }
}

function_group! {
    /// Virtual memory management.
    VirtualMemoryFunctions {
        granularity: "cuMemGetAllocationGranularity"
            (*mut usize, *const sys::CUmemAllocationProp, c_uint);
        create: "cuMemCreate"
            (*mut c_ulonglong, usize, *const sys::CUmemAllocationProp, c_ulonglong);
        release: "cuMemRelease" (c_ulonglong);
        export: "cuMemExportToShareableHandle" (*mut c_void, c_ulonglong, c_uint, c_ulonglong);
        import: "cuMemImportFromShareableHandle" (*mut c_ulonglong, *mut c_void, c_uint);
        properties: "cuMemGetAllocationPropertiesFromHandle"
            (*mut sys::CUmemAllocationProp, c_ulonglong);
        reserve: "cuMemAddressReserve"
            (*mut sys::CUdeviceptr, usize, usize, sys::CUdeviceptr, c_ulonglong);
        free: "cuMemAddressFree" (sys::CUdeviceptr, usize);
        map: "cuMemMap" (sys::CUdeviceptr, usize, usize, c_ulonglong, c_ulonglong);
        unmap: "cuMemUnmap" (sys::CUdeviceptr, usize);
        set_access: "cuMemSetAccess"
            (sys::CUdeviceptr, usize, *const sys::CUmemAccessDesc, usize);
    }
}

function_group! {
    /// Events that two processes use.
    IpcEventFunctions {
        export: "cuIpcGetEventHandle" (*mut sys::CUipcEventHandle, sys::CUevent);
        import: "cuIpcOpenEventHandle" (*mut sys::CUevent, sys::CUipcEventHandle);
    }
}

function_group! {
    /// Memory of other processes that they export by legacy handles.
    IpcMemoryFunctions {
        open: "cuIpcOpenMemHandle_v2" (*mut sys::CUdeviceptr, sys::CUipcMemHandle, c_uint);
        close: "cuIpcCloseMemHandle" (sys::CUdeviceptr);
        range: "cuMemGetAddressRange_v2" (*mut sys::CUdeviceptr, *mut usize, sys::CUdeviceptr);
    }
}

/// All functions of a loaded driver.
pub(crate) struct Functions {
    lookup: SymbolLookup,
    pub(crate) basic: BasicFunctions,
    uuid: SetOnce<UuidFunctions>,
    pci: SetOnce<PciFunctions>,
    context_numbers: SetOnce<ContextNumberFunctions>,
    streams: SetOnce<StreamFunctions>,
    stream_order: SetOnce<StreamOrderFunctions>,
    capture: SetOnce<CaptureFunctions>,
    stream_waits: SetOnce<StreamWaitFunctions>,
    kernels: SetOnce<KernelFunctions>,
    batches: SetOnce<BatchFunctions>,
    index_batches: SetOnce<BatchIndexFunctions>,
    events: SetOnce<EventFunctions>,
    allocations: SetOnce<AllocationFunctions>,
    virtual_memory: SetOnce<VirtualMemoryFunctions>,
    ipc_events: SetOnce<IpcEventFunctions>,
    ipc_memory: SetOnce<IpcMemoryFunctions>,
}

/// Declares the methods that return the groups.
macro_rules! groups {
    ($($group:ident: $type:ident),*) => {
        $(
            pub(crate) fn $group(&self) -> Result<&$type, CudaError> {
                match self.$group.get() {
                    Some(found) => Ok(found),
                    None => {
                        let found = $type::find(self.lookup)?;
                        Ok(self.$group.set(found))
                    }
                }
            }
        )*
    };
}

impl Functions {
    /// Finds the basic functions.
    ///
    /// # Errors
    /// [`CudaError::MissingFunction`].
    pub(crate) fn find(lookup: SymbolLookup) -> Result<Functions, CudaError> {
        Ok(Functions {
            lookup,
            basic: BasicFunctions::find(lookup)?,
            uuid: SetOnce::new(),
            pci: SetOnce::new(),
            context_numbers: SetOnce::new(),
            streams: SetOnce::new(),
            stream_order: SetOnce::new(),
            capture: SetOnce::new(),
            stream_waits: SetOnce::new(),
            kernels: SetOnce::new(),
            batches: SetOnce::new(),
            index_batches: SetOnce::new(),
            events: SetOnce::new(),
            allocations: SetOnce::new(),
            virtual_memory: SetOnce::new(),
            ipc_events: SetOnce::new(),
            ipc_memory: SetOnce::new(),
        })
    }

    groups! {
        uuid: UuidFunctions,
        pci: PciFunctions,
        context_numbers: ContextNumberFunctions,
        streams: StreamFunctions,
        stream_order: StreamOrderFunctions,
        capture: CaptureFunctions,
        stream_waits: StreamWaitFunctions,
        kernels: KernelFunctions,
        batches: BatchFunctions,
        index_batches: BatchIndexFunctions,
        events: EventFunctions,
        allocations: AllocationFunctions,
        virtual_memory: VirtualMemoryFunctions,
        ipc_events: IpcEventFunctions,
        ipc_memory: IpcMemoryFunctions
    }
}
