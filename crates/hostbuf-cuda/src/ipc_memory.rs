//! Memory of other processes, by legacy handles.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::c_char;
use std::fmt;

use cudarc::driver::sys;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::device_span::DeviceSpan;
use crate::functions::IpcMemoryFunctions;

/// Memory of a GPU that another process exported by a legacy handle (`cudaIpcGetMemHandle`).
///
/// This crate opens such handles and never makes them; [`PhysicalMemory`](crate::PhysicalMemory)
/// replaces them, since legacy handles
/// - need a common PID namespace, so they fail between containers;
/// - leave open what happens if the exporter frees the memory or ends before the importer;
/// - export nothing but allocations of `cuMemAlloc`, and do not work on Tegra;
/// - can be opened once in a process and a context.
#[doc(alias = "cudaIpcOpenMemHandle")]
pub struct IpcMemory {
    context: CudaContext,
    opened: u64,
    span: DeviceSpan,
    functions: &'static IpcMemoryFunctions,
}

impl IpcMemory {
    /// Opens a handle of another process of this host, whose GPU must be that of `context`.
    ///
    /// The exporter must keep the memory until this is dropped.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuIpcOpenMemHandle")]
    pub fn open(context: &CudaContext, handle: [u8; 64]) -> Result<IpcMemory, CudaError> {
        let functions = context.driver().functions().ipc_memory()?;
        let shared = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut opened = 0;
        // SAFETY: `opened` is a local variable; the driver checks the handle.
        context.call(format_args!("cuIpcOpenMemHandle on {}", context.gpu()), || unsafe {
            (functions.open)(&raw mut opened, shared, flags)
        })?;
        // The value owns the opened memory before the next call can fail.
        let span = DeviceSpan::new(opened, 0);
        let mut memory = IpcMemory { context: context.clone(), opened, span, functions };
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: all are local variables.
        context.call("cuMemGetAddressRange", || unsafe {
            (functions.range)(&raw mut address, &raw mut bytes, opened)
        })?;
        memory.span = DeviceSpan::new(address, bytes);
        Ok(memory)
    }

    /// Returns the allocation of the exporter, at the addresses of this process.
    #[must_use]
    pub fn span(&self) -> DeviceSpan {
        self.span
    }

    /// Returns the GPU's address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.span.address()
    }

    /// Returns the size of the exporter's allocation in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.span.bytes()
    }
}

impl fmt::Debug for IpcMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpcMemory").field("span", &self.span).finish_non_exhaustive()
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        let object = format!("memory of another process at {:#x}", self.opened);
        // SAFETY: opened by `open`, and closed once.
        self.context.end(object, "cuIpcCloseMemHandle", || unsafe { (self.functions.close)(self.opened) });
    }
}
