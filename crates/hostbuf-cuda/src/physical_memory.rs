//! Memory of a GPU without an address, which processes share by a descriptor.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys;
use hostbuf_os::Bytes;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::cuda_gpu::CudaGpu;
use crate::driver_caller::DriverCaller;
use crate::functions::VirtualMemoryFunctions;

/// Memory of a GPU that is not mapped yet. [`VirtualRange::map`](crate::VirtualRange::map) gives it
/// an address.
///
/// Any process that has its descriptor can import it, without a common PID namespace. The GPU's
/// memory is freed when the last process has released it and the last descriptor is closed, so it
/// outlives the process that created it.
pub struct PhysicalMemory {
    caller: DriverCaller,
    handle: u64,
    bytes: usize,
    functions: &'static VirtualMemoryFunctions,
}

const DESCRIPTOR: c_uint = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

/// Returns the properties of memory that is exported by a descriptor.
fn properties(gpu: &CudaGpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType(DESCRIPTOR),
        location: location(gpu.device()),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns the location of memory on a GPU.
pub(crate) fn location(device: sys::CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Returns `bytes`, rounded up to the granularity of memory and addresses of the caller's GPU.
pub(crate) fn rounded(caller: &DriverCaller, bytes: usize) -> Result<usize, CudaError> {
    let functions = caller.driver().functions().virtual_memory()?;
    let (mut granularity, properties) = (0, properties(caller.gpu()));
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as c_uint;
    // SAFETY: both are local variables.
    caller.call(format_args!("cuMemGetAllocationGranularity of {}", caller.gpu()), || unsafe {
        (functions.granularity)(&raw mut granularity, &raw const properties, minimum)
    })?;
    if bytes == 0 {
        return Err(CudaError::invalid("memory of 0 bytes on a GPU: request at least one".into()));
    }
    bytes.checked_next_multiple_of(granularity.max(1)).ok_or_else(|| {
        CudaError::invalid(format!("memory of {bytes} bytes on {}: request less", caller.gpu()))
    })
}

impl PhysicalMemory {
    /// Creates memory that can be exported. The size is rounded up to the GPU's granularity, which
    /// is usually 2 MiB. The content is undefined. The caller is a context or a GPU.
    ///
    /// # Errors
    /// [`CudaError::MissingFunction`] and the driver's, which
    /// [`GpuFeature::DescriptorExport`](crate::GpuFeature::DescriptorExport) tells beforehand.
    #[doc(alias = "cuMemCreate")]
    pub fn create(caller: impl Into<DriverCaller>, bytes: usize) -> Result<PhysicalMemory, CudaError> {
        let caller = caller.into();
        let functions = caller.driver().functions().virtual_memory()?;
        let bytes = rounded(&caller, bytes)?;
        let (mut handle, properties) = (0, properties(caller.gpu()));
        let request = format!("cuMemCreate of {} on {}", Bytes(bytes as u64), caller.gpu());
        // SAFETY: both are local variables.
        caller.allocate(&request, || unsafe {
            (functions.create)(&raw mut handle, bytes, &raw const properties, 0)
        })?;
        Ok(PhysicalMemory { caller, handle, bytes, functions })
    }

    /// Returns the granularity in bytes: the sizes and addresses of memory on `gpu` are multiples
    /// of it. It is usually 2 MiB.
    ///
    /// # Errors
    /// [`CudaError::MissingFunction`] and the driver's.
    #[doc(alias = "cuMemGetAllocationGranularity")]
    pub fn granularity(gpu: &CudaGpu) -> Result<usize, CudaError> {
        rounded(&DriverCaller::from(gpu), 1)
    }

    /// Imports the memory of a descriptor that [`export`](PhysicalMemory::export) returned in any
    /// process of this host. It must lie on the GPU of `caller`. `bytes` is its size,
    /// [`bytes`](PhysicalMemory::bytes) of the exporter: the descriptor does not state it, and the
    /// driver checks it when the memory is mapped. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] for memory of another GPU and for a length that no memory has, and
    /// the driver's, also for a descriptor of something else.
    #[doc(alias = "cuMemImportFromShareableHandle")]
    pub fn import(
        caller: impl Into<DriverCaller>,
        descriptor: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<PhysicalMemory, CudaError> {
        let caller = caller.into();
        let functions = caller.driver().functions().virtual_memory()?;
        if rounded(&caller, bytes)? != bytes {
            let what =
                format!("importing memory of {bytes} bytes on {}: no memory has this size", caller.gpu());
            return Err(CudaError::invalid(what));
        }
        // The driver takes the number in place of a pointer, and refuses 0 as a null pointer: the
        // standard input of a process may be its descriptor. A copy has a number of at least 3.
        let copy = (descriptor.as_raw_fd() == 0).then(|| descriptor.try_clone_to_owned()).transpose();
        let copy = copy.map_err(|error| {
            CudaError::invalid(format!("importing memory of descriptor 0: copying the descriptor: {error}"))
        })?;
        let (number, mut handle) = (copy.as_ref().map_or(descriptor.as_raw_fd(), AsRawFd::as_raw_fd), 0);
        let shared = number as usize as *mut c_void;
        // SAFETY: `handle` is a local variable; the driver checks the descriptor.
        caller.call(format_args!("cuMemImportFromShareableHandle of descriptor {number}"), || unsafe {
            (functions.import)(&raw mut handle, shared, DESCRIPTOR)
        })?;
        // The value owns the handle before the next call can fail.
        let memory = PhysicalMemory { caller, handle, bytes, functions };
        memory.require_gpu()?;
        Ok(memory)
    }

    /// Checks that the memory lies on the GPU of the caller.
    fn require_gpu(&self) -> Result<(), CudaError> {
        let mut found = properties(self.gpu());
        // SAFETY: `found` is a local variable, and the memory exists.
        self.caller.call("cuMemGetAllocationPropertiesFromHandle", || unsafe {
            (self.functions.properties)(&raw mut found, self.handle)
        })?;
        if found.location == location(self.gpu().device()) {
            return Ok(());
        }
        Err(CudaError::invalid(format!(
            "importing memory on {}: it lies on GPU {} of this process; take that GPU",
            self.gpu(),
            found.location.id
        )))
    }

    /// Returns a new descriptor of the memory, which closes on exec. It needs no context: a process
    /// without CUDA can hold it and send it.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut number: c_int = -1;
        // SAFETY: `number` is a local variable; the driver writes a descriptor of that type.
        self.caller.call("cuMemExportToShareableHandle", || unsafe {
            (self.functions.export)((&raw mut number).cast(), self.handle, DESCRIPTOR, 0)
        })?;
        // SAFETY: the driver has opened the descriptor for this caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        // The driver does not promise the flag.
        match fcntl(&descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)) {
            Ok(_) => Ok(descriptor),
            Err(errno) => Err(CudaError::invalid(format!(
                "exporting memory of {} on {}: setting FD_CLOEXEC of descriptor {number}: {errno}",
                Bytes(self.bytes as u64),
                self.gpu()
            ))),
        }
    }

    /// Returns the size in bytes, a multiple of the GPU's granularity.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the GPU.
    #[must_use]
    pub fn gpu(&self) -> &CudaGpu {
        self.caller.gpu()
    }

    /// Returns the context, unless the memory was made for a GPU without one.
    #[must_use]
    pub fn context(&self) -> Option<&CudaContext> {
        self.caller.context()
    }

    pub(crate) fn caller(&self) -> &DriverCaller {
        &self.caller
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhysicalMemory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        let object = format!("memory of {} on {}", Bytes(self.bytes as u64), self.gpu());
        // SAFETY: created or imported once, and released once; mappings keep the memory.
        self.caller.end(object, "cuMemRelease", || unsafe { (self.functions.release)(self.handle) });
    }
}
